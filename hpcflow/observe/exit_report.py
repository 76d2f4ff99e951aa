"""Why an attempt ended: `exit.json`, published once by the supervisor when all processes are gone.

Where the supervisor itself was killed, its sweeper publishes the report. Readers take a missing or
unreadable file as "not over, or not known".
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hpcflow import atomic
from hpcflow.rundir import AttemptDir

Outcome = Literal["done", "stopped", "failed"]

CAUSES: dict[str, str] = {
    "done": "all steps were done",
    "stopped": "asked to stop; the checkpoint is complete, the run can be resumed",
    "preempted": "ended from outside while stopping; resume from the last complete checkpoint",
    "aborted": "told a second time to stop: ended at once, without a checkpoint",
    "stop_timeout": "asked to stop, but the driver had not left when the time was over",
    "spec": "the job's first step found a fault in the spec",
    "data": "the job's first step found a fault in the data",
    "step_failed": "Slurm could not start a step on all its nodes, or lost it",
    "start_timeout": "a rank was not ready in time",
    "killed": "a process was ended by a signal that the supervisor did not send",
    "exited": "a process ended by itself without saying why",
    "out_of_memory": "a process ran out of memory (of host or GPU) and said so",
    "role_error": "code of a role or of the driver raised an exception",
    "rpc_timeout": "a rank did not answer a call in time",
    "silent": "a process lives but sends no heartbeats",
    "non_finite": "loss or gradients were not finite too often",
    "reward_faults": "too many rewards could not be computed",
    "supervisor_error": "the supervisor itself failed",
    "supervisor_lost": "the supervisor was killed or does not answer",
}


class ExitReport(msgspec.Struct, frozen=True, kw_only=True):
    """The blamed process, what is known of it, and what happens next.

    `rank` -1 is the whole role. `exit_code` and `signal` are the blamed process's own, None where it had
    not ended by itself. `step` is the last step that the driver told of. `tail` are the last lines of
    `log`, the blamed process's log. `resident_bytes` is each process's last known memory, with its
    descendants. `gone` tells of each process that was lost and that the run went on without. `decision`
    "stop": hpcflow restarts nothing (Slurm may requeue the job). `time` is in seconds since the epoch.
    """

    attempt: int
    outcome: Outcome
    cause: str
    role: str
    rank: int
    host: str
    message: str
    hint: str = ""
    exit_code: int | None = None
    signal: int | None = None
    step: int | None = None
    log: str = ""
    tail: list[str] = []
    resident_bytes: dict[str, int] = {}
    gone: list[str] = []
    decision: str = "stop"
    time: float


def write_exit(attempt: AttemptDir, report: ExitReport) -> None:
    """Publish the report."""
    assert report.cause in CAUSES, report.cause
    atomic.write_json(attempt.exit_json, msgspec.to_builtins(report))


def read_exit(attempt: AttemptDir) -> ExitReport | None:
    """The report of an attempt; None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(attempt.exit_json.read_bytes(), type=ExitReport)
    except (OSError, msgspec.DecodeError):
        return None
