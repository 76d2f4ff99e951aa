"""What the files of a run say of its newest attempt, before anybody is asked whether it still lives.

Files only; never waits. Whoever asks for a process or for a job asks first and reads the files then: what has
ended has published its report by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcflow.observe.exit_report import ExitReport, read_exit
from hpcflow.observe.job import JobRecord, read_cancelled, read_job, read_supervisor
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.state import read_state
from hpcflow.rundir import AttemptDir, RunDir

# Without a look at the process or the job itself, files older than this say nothing about now.
FRESH_S = 60.0
# The driver's phase until all roles are ready.
STARTING = "starting"

State = Literal["queued", "starting", "running", "ending", "done", "stopped", "failed", "lost", "unknown"]
ACTIVE: tuple[State, ...] = ("queued", "starting", "running", "ending")
OVER: tuple[State, ...] = ("done", "stopped", "failed", "lost")


@dataclass(frozen=True)
class Signs:
    """`attempt` is None before the newest submission has one; `age_s` is its last sign of life's."""

    attempt: AttemptDir | None
    supervisor: ProcessMark | None
    report: ExitReport | None
    driver_phase: str | None
    cancelled: bool
    age_s: float | None
    submitted_s: float

    @property
    def progress(self) -> State:
        """How far the attempt is, taken that it lives."""
        if self.attempt is None:
            return "queued"
        return "starting" if self.driver_phase in (None, STARTING) else "running"

    @property
    def fresh(self) -> bool:
        """Whether something was written (before there is an attempt: submitted) just now."""
        return (self.submitted_s if self.age_s is None else self.age_s) <= FRESH_S


@dataclass(frozen=True)
class Judgement:
    """A state, and one line on it for people, empty where the state says it all."""

    state: State
    reason: str = ""


def last_attempt(run: RunDir) -> AttemptDir | None:
    """The newest attempt of the newest submission; None before it has begun."""
    attempts = run.attempts()
    if not attempts:
        return None
    job = read_job(run)
    return attempts[-1] if job is None or attempts[-1].number >= job.attempt else None


def read_signs(run: RunDir, job: JobRecord, clock: Callable[[], float]) -> Signs:
    """Read once."""
    attempt = last_attempt(run)
    driver = read_state(run)
    own = driver is not None and attempt is not None and driver.attempt == attempt.number
    seen = _last_sign(run, attempt, own=own)
    return Signs(
        attempt=attempt,
        supervisor=read_supervisor(attempt) if attempt else None,
        report=read_exit(attempt) if attempt else None,
        driver_phase=driver.phase if driver and own else None,
        cancelled=read_cancelled(run) == job.job_id,
        age_s=None if seen is None else max(0.0, clock() - seen),
        submitted_s=max(0.0, clock() - job.time),
    )


def _last_sign(run: RunDir, attempt: AttemptDir | None, *, own: bool) -> float | None:
    """When anything of the newest attempt was last written, in seconds since the epoch."""
    if attempt is None:
        return None
    files: list[Path] = [attempt.supervisor_json, attempt.endpoints_json]
    files += attempt.logs.glob("*.log") if attempt.logs.is_dir() else []
    files += [run.state_json, run.metrics_jsonl] if own else []
    times = [file.stat().st_mtime for file in files if file.exists()]
    return max(times, default=None)


def last_seen(age_s: float | None) -> str:
    """`last seen 4 min ago`."""
    return "never seen" if age_s is None else f"last seen {duration(age_s)} ago"


def duration(seconds: float) -> str:
    """`42 s`, `4 min`, `3.5 h` or `2.1 d`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
