"""From a run folder to what the run is doing: files, process ids, and for a run on Slurm one query.

Works on a run that waits, runs, ended or was killed. What cannot be known is `unknown`, and what stopped
without an exit report is `lost`; neither is ever shown as running. Never waits for the run; for Slurm's
controller as long as one command may take.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from hpcflow.observe import local_job, slurm_judge
from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.observe.metrics import figure, latest_row
from hpcflow.observe.places import step_places
from hpcflow.observe.signs import ACTIVE, OVER, Judgement, Signs, State, read_signs
from hpcflow.observe.slurm_ask import Ask, News, ask_slurm
from hpcflow.observe.slurm_look import SlurmLook, StepPlace
from hpcflow.observe.state import read_state
from hpcflow.rundir import MANIFEST, RunDir


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run; JSON with `hpcflow status --json`.

    `age_s`: seconds since the last sign of life, None where there never was one. `attempt` is 0 before
    the first attempt. `checkpoint_step` is the newest complete checkpoint. `reason` is one line for
    people, empty where `state` says it all. `exit` is the newest attempt's report; while Slurm holds the job
    to start it again, that of the attempt before. `slurm` is what the controller said, None where it was not
    asked; `places` tells where the job steps are, as far as it is known.
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
    slurm: SlurmLook | None = None
    places: tuple[StepPlace, ...] = ()

    @property
    def active(self) -> bool:
        """Waits or runs."""
        return self.state in ACTIVE

    @property
    def over(self) -> bool:
        """Has ended, one way or another."""
        return self.state in OVER

    @property
    def may_come_back(self) -> bool:
        """Whether nobody knows if Slurm still holds the job: what is over may be started again by it."""
        return self.slurm is not None and self.slurm.unanswered


def newest_checkpoint(run: RunDir) -> int | None:
    """Step of the newest checkpoint that is complete: its manifest is in place."""
    complete = [step for step in run.checkpoint_steps() if (run.checkpoint(step) / MANIFEST).exists()]
    return complete[-1] if complete else None


def read_status(run: RunDir, *, clock: Callable[[], float] = time.time, ask: Ask = ask_slurm) -> RunStatus:
    """Look once; `ask` is called at most once, for a run on Slurm that may not be over."""
    job = read_job(run)
    if job is None:
        unfinished = Judgement("unknown", "no job.json: the submission was not completed")
        return _status(run, None, None, None, unfinished)
    if job.executor == "local":
        # The process is looked at before the report: one that is gone has published its report by now.
        alive = local_job.liveness(read_signs(run, job, clock).supervisor, job)
        signs = read_signs(run, job, clock)
        return _status(run, job, signs, None, local_job.judge(signs, job, alive))
    look = None
    signs = read_signs(run, job, clock)
    if not slurm_judge.decided(signs):
        attempt = 0 if signs.attempt is None else signs.attempt.number
        look = ask(job, News(attempt, signs.report is not None))
        signs = read_signs(run, job, clock)
    return _status(run, job, signs, look, slurm_judge.judge(signs, look, clock()))


def _status(
    run: RunDir, job: JobRecord | None, signs: Signs | None, look: SlurmLook | None, judged: Judgement
) -> RunStatus:
    driver = read_state(run)
    latest = latest_row(run, "train") or {}
    attempts = run.attempts()
    return RunStatus(
        name=run.name,
        path=str(run.path),
        state=judged.state,
        reason=judged.reason,
        executor=job.executor if job else None,
        job_id=job.job_id if job else None,
        attempt=attempts[-1].number if attempts else 0,
        step=driver.step if driver else 0,
        steps=driver.steps if driver else None,
        phase=signs.driver_phase if signs and judged.state == "running" else None,
        age_s=signs.age_s if signs else None,
        checkpoint_step=newest_checkpoint(run),
        heldout_before=driver.heldout_before if driver else None,
        heldout=driver.heldout if driver else None,
        reward=figure(latest, "reward"),
        kl=figure(latest, "kl"),
        tokens_per_second=figure(latest, "tokens_per_second"),
        exit=signs.report if signs else None,
        slurm=look,
        places=step_places(run, signs.attempt, look) if signs and job and job.executor == "slurm" else (),
    )
