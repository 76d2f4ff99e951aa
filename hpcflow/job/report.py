"""Turns a verdict into the exit report, with what the files say: the step and the end of the log."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from hpcflow.job.verdict import THE_DRIVER, Member, Verdict
from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.state import read_state
from hpcflow.rpc.identity import SUPERVISOR
from hpcflow.rundir import AttemptDir, RunDir

_TAIL_LINES = 20
_TAIL_BYTES = 16384


def build(
    attempt: AttemptDir,
    verdict: Verdict,
    *,
    statuses: Mapping[Member, int],
    hosts: Mapping[Member, str],
    resident_bytes: Mapping[Member, int],
    gone: Mapping[Member, str] | None = None,
) -> ExitReport:
    """The report of an attempt whose processes are gone.

    `statuses` are exit codes or minus signals of all processes. A signal is told only where it is part of
    the evidence: others were sent by the supervisor. `gone` is what the run went on without, and why.
    """
    blamed = verdict.evidence
    status = statuses.get(blamed.member) if blamed.status is None else blamed.status
    exit_code = status if status is not None and status >= 0 else None
    signum = -blamed.status if blamed.status is not None and blamed.status < 0 else None
    log, tail = _log_of(attempt, blamed.member)
    return ExitReport(
        attempt=attempt.number,
        outcome=verdict.outcome,
        cause=blamed.cause,
        role=blamed.member.role,
        rank=blamed.member.rank,
        # What is on no node of its own, such as an `srun`, is where the driver is.
        host=blamed.host or hosts.get(blamed.member) or hosts.get(THE_DRIVER, socket.gethostname()),
        message=blamed.message,
        hint=blamed.hint,
        exit_code=exit_code,
        signal=signum,
        step=_step(attempt),
        log=log,
        tail=tail,
        resident_bytes={f"{m.role}.{m.rank}": size for m, size in sorted(resident_bytes.items())},
        gone=[why for _, why in sorted((gone or {}).items())],
        time=time.time(),
    )


def lost_report(attempt: AttemptDir) -> ExitReport:
    """The report of an attempt whose supervisor was killed."""
    log, tail = _log_of(attempt, Member(SUPERVISOR, 0))
    return ExitReport(
        attempt=attempt.number,
        outcome="failed",
        cause="supervisor_lost",
        role=SUPERVISOR,
        rank=0,
        host=socket.gethostname(),
        message="the supervisor ended without an exit report; its processes were ended",
        hint="it was killed from outside; resume from the last complete checkpoint",
        step=_step(attempt),
        log=log,
        tail=tail,
        time=time.time(),
    )


def _step(attempt: AttemptDir) -> int | None:
    state = read_state(RunDir(attempt.path.parent))
    return state.step if state is not None and state.attempt == attempt.number else None


def _log_of(attempt: AttemptDir, member: Member) -> tuple[str, list[str]]:
    """Path and last lines of a process's log; of rank 0 where the whole role is blamed."""
    path = attempt.log(member.role, max(member.rank, 0))
    if not path.is_file():
        return "", []
    return str(path), tail_of(path, _TAIL_BYTES).splitlines()[-_TAIL_LINES:]


def tail_of(path: Path, size: int) -> str:
    """The last `size` bytes of a log, as text; empty where there is no such log."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode(errors="replace")
