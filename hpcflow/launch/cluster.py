"""Which executor takes a run: the one place that knows what `--cluster` means.

Slurm is asked for its controller, with a time-out; nothing is submitted here.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcflow.errors import ClusterError, HpcflowError, UserError
from hpcflow.slurm.client import SlurmClient

# What a submission and its steps are made with; `sbatch` alone tells a site with Slurm from one without.
TOOLS = ("sbatch", "srun", "squeue", "scontrol", "scancel")

_ASKED = "--cluster slurm: "

Cluster = Literal["auto", "slurm", "local"]
Executor = Literal["local", "slurm"]


@dataclass(frozen=True)
class Choice:
    """The executor, and why it was chosen where the user left that open."""

    executor: Executor
    reason: str


def choose(cluster: Cluster, client: SlurmClient | None = None) -> Choice:
    """The executor for `--cluster`.

    Raises:
        UserError: `slurm` was asked for, but its commands are not here.
        ClusterError: its commands are here, but no controller answers.
    """
    if cluster == "local":
        return Choice("local", "")
    try:
        _check_slurm(client or SlurmClient())
    except HpcflowError as obstacle:
        if cluster == "slurm":
            raise
        return Choice("local", f"{obstacle.message.removeprefix(_ASKED)}: running on this machine")
    if cluster == "slurm":
        return Choice("slurm", "")
    return Choice(
        "slurm", "a Slurm controller answers: submitting to it (--cluster local runs on this machine)"
    )


def _check_slurm(client: SlurmClient) -> None:
    """Refuse a machine that cannot submit to Slurm."""
    hint = "submit on a login node of the cluster (SLURM_CONF selects it), or use --cluster local"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if "sbatch" in missing:
        raise UserError(f"{_ASKED}no sbatch on PATH", hint=hint)
    if missing:
        raise UserError(f"{_ASKED}sbatch is on PATH but {', '.join(missing)} is not", hint=hint)
    conf = os.environ.get("SLURM_CONF")
    if conf is not None and not Path(conf).is_file():  # Slurm's commands would look for it for a minute
        raise ClusterError(f"{_ASKED}SLURM_CONF names no file: {conf!r}", hint=hint)
    if not client.controller_answers():
        raise ClusterError(f"{_ASKED}sbatch is on PATH but no controller answers", hint=hint)
