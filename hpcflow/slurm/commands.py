"""Runs one command of Slurm: with a time-out, in English, and with nothing that would change its answer.

Never a shell, never a retry: whoever asks decides what an unclear answer means.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcflow.errors import ClusterError

# A person's taste for output: a filter here makes a live job invisible, a format makes it unreadable, and
# SCANCEL_INTERACTIVE waits for an answer.
_TASTE = re.compile(r"(SQUEUE|SINFO|SCANCEL|SCONTROL|SACCT)_.*|SLURM_TIME_FORMAT|SLURM_BITSTR_LEN")
# Set by a surrounding job: names another controller than SLURM_CONF does.
_OTHER_CLUSTER = "SLURM_WORKING_CLUSTER"


# What to do about an answer that cannot be read.
WRAPPED = "does a wrapper around Slurm's commands, or a variable of your environment, change what they print?"


@dataclass(frozen=True)
class CommandResult:
    """What a command said; `code` is None where it was ended because its time was up."""

    code: int | None
    stdout: str
    stderr: str


Run = Callable[[Sequence[str], float], CommandResult]


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment for asking the controller: the same answer whatever a person set for their terminal."""
    kept = {
        name: value
        for name, value in environ.items()
        if name != _OTHER_CLUSTER and not _TASTE.fullmatch(name)
    }
    return {**kept, "LC_ALL": "C"}


def run_in(environ: Mapping[str, str]) -> Run:
    """A runner of commands in exactly this environment, found on its PATH."""
    fixed = dict(environ)

    def run(argv: Sequence[str], timeout_s: float) -> CommandResult:
        return _run(argv, timeout_s, fixed)

    return run


def run_here(argv: Sequence[str], timeout_s: float) -> CommandResult:
    """Run in this process's environment, as it is now."""
    return _run(argv, timeout_s, query_environment(os.environ))


def _run(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandResult:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=environ,
        )
    except subprocess.TimeoutExpired as late:
        return CommandResult(None, _text(late.stdout), _text(late.stderr))
    except OSError as error:
        raise ClusterError(
            f"{argv[0]} cannot be run: {error.strerror}",
            hint="is this a node of the cluster with Slurm's commands on PATH (`module load slurm`)?",
        ) from error
    return CommandResult(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(output: bytes | None) -> str:
    """A path in Slurm's output may be no UTF-8."""
    return (output or b"").decode(errors="surrogateescape")
