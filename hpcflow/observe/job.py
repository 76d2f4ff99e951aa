"""`job.json`, how a run was submitted last, and `supervisor.json`, which process leads an attempt.

The launcher writes the first, the supervisor the second; both by rename. Readers take a missing or
unreadable file as "not known". Never read from submitit's own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from hpcflow.observe.processes import ProcessMark
from hpcflow.rundir import AttemptDir, RunDir

T = TypeVar("T")


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One submission. `controller` waits for the supervisor and lives as long as the job, locally.

    `attempt` is the number that the attempt of this submission will have; `submitted` is ISO 8601 with its
    time zone.
    """

    executor: str
    job_id: str
    submitted: str
    attempt: int
    controller: ProcessMark


def read_job(run: RunDir) -> JobRecord | None:
    """How the run was submitted last; None where it was not."""
    return _read(run.job_json, JobRecord)


def read_supervisor(attempt: AttemptDir) -> ProcessMark | None:
    """The supervisor of an attempt; None where it has not said so yet."""
    return _read(attempt.supervisor_json, ProcessMark)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
