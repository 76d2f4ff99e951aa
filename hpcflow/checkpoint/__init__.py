"""Checkpoints: a folder per step, valid once its manifest is in place."""
