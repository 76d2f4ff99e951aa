"""`job.json`, how a run was submitted last, and `supervisor.json`, which process leads an attempt.

Whoever submits a run or starts it within a job writes the first, the supervisor the second; `cancelled.json`
is left by a cancel of a job that waits. All by rename. Readers take a missing or unreadable file as "not
known". Never read from submitit's own files.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hpcflow import atomic
from hpcflow.observe.processes import ProcessMark
from hpcflow.rundir import AttemptDir, RunDir

T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One submission.

    `job_id` is Slurm's (the leader's, for a heterogeneous job), or the controller's pid. `attempt` is the
    number that the first attempt of this submission will have: Slurm may requeue a job. `submitted` is ISO
    8601 with its time zone. `controller` waits for the supervisor and lives as long as the job; None on
    Slurm. `slurm_conf` is SLURM_CONF at submission, which selects the cluster; None where it was not set.
    """

    executor: Literal["local", "slurm"]
    job_id: str
    submitted: str
    attempt: int
    controller: ProcessMark | None = None
    slurm_conf: str | None = None

    @property
    def time(self) -> float:
        """When it was submitted, in seconds since the epoch; 0 where the file does not say so readably."""
        try:
            return datetime.fromisoformat(self.submitted).timestamp()
        except ValueError:
            return 0.0


class Cancelled(msgspec.Struct, frozen=True):
    """A job that was cancelled before it could start; an older submission's record says nothing."""

    job_id: str


def now_submitted() -> str:
    """This moment, as `JobRecord.submitted` has it."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


def write_job(run: RunDir, record: JobRecord) -> None:
    """Publish how the run was submitted."""
    atomic.write_json(run.job_json, msgspec.to_builtins(record))


def read_job(run: RunDir) -> JobRecord | None:
    """How the run was submitted last; None where it was not."""
    return _read(run.job_json, JobRecord)


def read_supervisor(attempt: AttemptDir) -> ProcessMark | None:
    """The supervisor of an attempt; None where it has not said so yet."""
    return _read(attempt.supervisor_json, ProcessMark)


def read_cancelled(run: RunDir) -> str | None:
    """The job that was cancelled while it waited; None where none was."""
    found = _read(run.cancelled_json, Cancelled)
    return None if found is None else found.job_id


def write_cancelled(run: RunDir, job_id: str) -> None:
    """Keep that the job was cancelled while it waited: its controller forgets it soon."""
    atomic.write_json(run.cancelled_json, msgspec.to_builtins(Cancelled(job_id)))


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
