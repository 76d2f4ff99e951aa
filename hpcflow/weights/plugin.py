"""Entry point of `vllm.general_plugins`: makes our weight transfer known in every vLLM process.

vLLM calls `register` at start-up of each of its processes; the engine's module is imported only
when a run asks for this backend.
"""

from __future__ import annotations

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from hpcflow.weights.gloo import BACKEND

_registered = False


def register() -> None:
    """Register the gloo backend once; vLLM may call plugins again in the same process."""
    global _registered
    if not _registered:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "hpcflow.weights.gloo_engine", "GlooWeightTransferEngine"
        )
        _registered = True
