"""Settings of the tiny model's rollout engine, shared by tests that start vLLM."""

from __future__ import annotations

from pathlib import Path

from hpcflow.roles.rollout_engine import RolloutSettings


def settings(folder: Path) -> RolloutSettings:
    """A small float32 engine on the CPU; 64 MiB of cache."""
    return RolloutSettings(
        model_folder=folder,
        dtype="float32",
        device="cpu",
        seed=0,
        max_model_len=256,
        kv_cache_bytes=64 * 2**20,
        max_sequences=32,
    )
