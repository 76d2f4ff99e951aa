"""SPMD role processes that the supervisor starts: actor, critic, reference, reward, rollout."""
