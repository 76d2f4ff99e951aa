"""From a run folder to what the run is doing: files and process ids only, nothing is asked of the job.

Works on a run that waits, runs, ended or was killed. What cannot be known is `unknown`, and what stopped
without an exit report is `lost`; neither is ever shown as running. Never waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from hpcflow.observe.exit_report import ExitReport, read_exit
from hpcflow.observe.job import JobRecord, read_job, read_supervisor
from hpcflow.observe.metrics import figure, latest_row
from hpcflow.observe.processes import Liveness, ProcessMark
from hpcflow.observe.state import read_state
from hpcflow.rundir import MANIFEST, AttemptDir, RunDir

# Without a look at the process itself, files older than this say nothing about now.
FRESH_S = 60.0
# The driver's phase until all roles are ready.
STARTING = "starting"

State = Literal["queued", "starting", "running", "done", "stopped", "failed", "lost", "unknown"]
ACTIVE: tuple[State, ...] = ("queued", "starting", "running")
OVER: tuple[State, ...] = ("done", "stopped", "failed", "lost")


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run; JSON with `hpcflow status --json`.

    `age_s`: seconds since the last sign of life, None where there never was one. `attempt` is 0 before
    the first attempt. `checkpoint_step` is the newest complete checkpoint. `reason` is one line for
    people, empty where `state` says it all.
    """

    name: str
    path: str
    state: State
    reason: str
    executor: str | None
    job_id: str | None
    attempt: int
    step: int
    steps: int | None
    phase: str | None
    age_s: float | None
    checkpoint_step: int | None
    heldout_before: float | None
    heldout: float | None
    reward: float | None
    kl: float | None
    tokens_per_second: float | None
    exit: ExitReport | None

    @property
    def active(self) -> bool:
        """Waits or runs."""
        return self.state in ACTIVE

    @property
    def over(self) -> bool:
        """Has ended, one way or another."""
        return self.state in OVER


def newest_checkpoint(run: RunDir) -> int | None:
    """Step of the newest checkpoint that is complete: its manifest is in place."""
    complete = [step for step in run.checkpoint_steps() if (run.checkpoint(step) / MANIFEST).exists()]
    return complete[-1] if complete else None


def last_attempt(run: RunDir) -> AttemptDir | None:
    """The attempt that the newest submission belongs to; None before it has begun."""
    attempts = run.attempts()
    if not attempts:
        return None
    job = read_job(run)
    return attempts[-1] if job is None or attempts[-1].number >= job.attempt else None


def read_status(run: RunDir, *, clock: Callable[[], float] = time.time) -> RunStatus:
    """Look once."""
    job = read_job(run)
    attempt = last_attempt(run)
    state, reason, report, age_s = _judge(run, job, attempt, clock)
    driver = read_state(run)
    latest = latest_row(run, "train") or {}
    attempts = run.attempts()
    current = driver if driver and attempt and driver.attempt == attempt.number else None
    return RunStatus(
        name=run.name,
        path=str(run.path),
        state=state,
        reason=reason,
        executor=job.executor if job else None,
        job_id=job.job_id if job else None,
        attempt=attempts[-1].number if attempts else 0,
        step=driver.step if driver else 0,
        steps=driver.steps if driver else None,
        phase=current.phase if current and state == "running" else None,
        age_s=age_s,
        checkpoint_step=newest_checkpoint(run),
        heldout_before=driver.heldout_before if driver else None,
        heldout=driver.heldout if driver else None,
        reward=figure(latest, "reward"),
        kl=figure(latest, "kl"),
        tokens_per_second=figure(latest, "tokens_per_second"),
        exit=report,
    )


def _judge(
    run: RunDir, job: JobRecord | None, attempt: AttemptDir | None, clock: Callable[[], float]
) -> tuple[State, str, ExitReport | None, float | None]:
    """State, reason, exit report and age; the order of the looks leaves no gap for a wrong answer."""
    if job is None:
        return "unknown", "no job.json: the submission was not completed", None, None
    leader = read_supervisor(attempt) if attempt else None
    # The process is looked at before the report: one that is gone has published its report by now.
    liveness = _liveness(leader, job.controller)
    report = read_exit(attempt) if attempt else None
    seen = _last_sign(run, attempt)
    age_s = None if seen is None else max(0.0, clock() - seen)
    if report is not None:
        return report.outcome, "", report, age_s
    if liveness == "gone":
        return "lost", _lost(attempt, age_s), None, age_s
    if liveness == "unknown" and (age_s is None or age_s > FRESH_S):
        host = (leader or job.controller).host
        return "unknown", f"runs on {host}; {_seen(age_s)}", None, age_s
    if attempt is None:
        return "queued", "", None, age_s
    driver = read_state(run)
    if driver is None or driver.attempt != attempt.number or driver.phase == STARTING:
        return "starting", "", None, age_s
    return "running", "", None, age_s


def _liveness(leader: ProcessMark | None, controller: ProcessMark) -> Liveness:
    """Of the supervisor; before it has said who it is, of the process that is starting it."""
    return controller.liveness() if leader is None else leader.liveness()


def _lost(attempt: AttemptDir | None, age_s: float | None) -> str:
    if attempt is None:
        return "the job ended before its supervisor began"
    return f"the supervisor is gone without an exit report; {_seen(age_s)}"


def _seen(age_s: float | None) -> str:
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


def _last_sign(run: RunDir, attempt: AttemptDir | None) -> float | None:
    """When anything of the newest attempt was last written, in seconds since the epoch."""
    if attempt is None:
        return None
    files: list[Path] = [attempt.supervisor_json, attempt.endpoints_json]
    files += attempt.logs.glob("*.log") if attempt.logs.is_dir() else []
    driver = read_state(run)
    if driver is not None and driver.attempt == attempt.number:
        files += [run.state_json, run.metrics_jsonl]
    times = [file.stat().st_mtime for file in files if file.exists()]
    return max(times, default=None)
