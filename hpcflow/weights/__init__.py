"""Weights from actor to rollout, in vLLM's words. Never through the driver."""
