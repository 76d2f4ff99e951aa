"""Which executor takes a run: the one place that knows what `--cluster` means.

Slurm is asked for its controller, with a time-out; nothing is submitted here.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

from hpcflow.errors import UserError

PING_TIMEOUT_S = 10.0

Cluster = Literal["auto", "slurm", "local"]


@dataclass(frozen=True)
class Choice:
    """The executor, and why it was chosen where the user left that open."""

    executor: Literal["local"]
    reason: str


def choose(cluster: Cluster) -> Choice:
    """The executor for `--cluster`.

    Raises:
        UserError: `slurm` was asked for, but cannot be used.
    """
    if cluster == "local":
        return Choice("local", "")
    if shutil.which("sbatch") is None:
        if cluster == "slurm":
            raise UserError(
                "--cluster slurm: sbatch is not on PATH",
                hint="submit on a login node of the cluster, or use --cluster local",
            )
        return Choice("local", "no sbatch on PATH: running on this machine")
    if cluster == "slurm":
        raise UserError(
            "--cluster slurm: this version cannot submit to Slurm yet",
            hint="use --cluster local, inside an allocation if the login node is not for computing; "
            "--dry-run prints the batch script",
        )
    if controller_answers():
        return Choice(
            "local",
            "Slurm answers, but this version cannot submit to it yet: running on this machine",
        )
    return Choice("local", "sbatch is on PATH but no controller answers: running on this machine")


def controller_answers() -> bool:
    """Whether `scontrol ping` finds a controller that is up."""
    try:
        reply = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=PING_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return reply.returncode == 0 and " is UP" in reply.stdout
