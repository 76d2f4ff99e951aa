"""The one function that is submitted: become the supervisor of a run.

Imports nothing of ours, so that the pickle that carries its name depends on nothing else. Never returns and
never leaves a result pickle; the run folder tells how the run went.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

# The executor overwrites CUDA_VISIBLE_DEVICES; the launcher keeps the user's own value here.
KEPT_DEVICES = "HPCFLOW_KEPT_CUDA_VISIBLE_DEVICES"


def supervisor_environment(environment: dict[str, str]) -> dict[str, str]:
    """The user's environment again: without the executor's variables, with the user's GPU list."""
    kept = {key: value for key, value in environment.items() if not key.startswith("SUBMITIT_")}
    kept.pop("CUDA_VISIBLE_DEVICES", None)
    devices = kept.pop(KEPT_DEVICES, None)
    return kept if devices is None else {**kept, "CUDA_VISIBLE_DEVICES": devices}


def become_supervisor(run_dir: str) -> NoReturn:
    """Replace this process, and its signal handlers, by `python -m hpcflow.job RUN_DIR`."""
    command = [sys.executable, "-m", "hpcflow.job", run_dir]
    os.execve(sys.executable, command, supervisor_environment(dict(os.environ)))
