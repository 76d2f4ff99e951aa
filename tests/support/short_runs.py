"""Short runs of the whole topology that end early: killed, or stopped and resumed.

They share one spec: 24 steps of 32 samples, each in two optimizer steps, scored by a function that fails for
some problems. So their rows can be compared, whatever happens to a run on its way.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcflow.observe.exit_report import ExitReport
from tests.support.real_runs import CONFIG, RealRun, Site, arguments, interrupt, said_by

STEPS = 24
SETTINGS = (
    f"steps={STEPS}",
    "algorithm.prompts_per_step=16",
    "algorithm.samples_per_prompt=2",
    "algorithm.minibatch_samples=32",
    "algorithm.epochs=2",
    "roles.actor.microbatch_per_gpu=8",
    "roles.critic.microbatch_per_gpu=8",
    f"roles.reward.function={Path(__file__).with_name('sometimes_faulty.py')}:score",
    "health.max_faulty_rewards=0.5",
    "evaluation.prompts=16",
    "evaluation.every_steps=1000",
    "checkpoint.every_steps=1000",
)


@dataclass(frozen=True)
class Killed:
    """A run of which one rank was killed with -9.

    `gone_after_s` counts from the kill until no process of the attempt was there; `left` is what was found
    then; `printed` and `exit_code` are the follower's.
    """

    real: RealRun
    report: ExitReport
    gone_after_s: float
    left: list[str]
    printed: str
    exit_code: int


@dataclass(frozen=True)
class Stop:
    """An attempt that was asked to stop: its report, and what there was when it had ended."""

    report: ExitReport
    checkpoints: list[int]
    last_step: int
    left: list[str]


@dataclass(frozen=True)
class Resumed:
    """A run that was stopped by Ctrl-C, then by TERM, and resumed each time, at last to its end."""

    real: RealRun
    by_ctrl_c: Stop
    follower_printed: str
    follower_exit_code: int
    by_term: Stop
    last: ExitReport
    last_exit_code: int


def killed_run(
    site: Site, name: str, overrides: Sequence[str], *, after: int, role: str, rank: int = 0
) -> Killed:
    """Follow a run, and kill a rank once step `after` is told."""
    real = site.run_of(name)
    with site.following(*arguments(CONFIG, name, overrides)) as follower:
        real.wait_for_step(after)
        supervisor, victim = real.supervisor(), real.role(role, rank)
        family = [supervisor, *supervisor.children(recursive=True)]
        assert len(family) > 6, family
        killed_at = time.monotonic()
        victim.kill()
        _, alive = psutil.wait_procs(family, timeout=60)
        gone_after_s = time.monotonic() - killed_at
        assert not alive
        report, left = real.ended(), real.left()
        printed = said_by(follower)
    return Killed(real, report, gone_after_s, left, printed, follower.returncode)


def resumed_run(site: Site, name: str) -> Resumed:
    """Submit, press Ctrl-C after step 3, resume, send TERM three steps later, resume to the end."""
    real = site.run_of(name)
    with site.following(*arguments(CONFIG, name, SETTINGS)) as follower:
        real.wait_for_step(3)
        interrupt(follower)
        printed = said_by(follower)
    by_ctrl_c = _stop(real, 1)
    assert site.hpcflow("resume", str(real.run.path)).returncode == 0
    real.wait_for_step(by_ctrl_c.last_step + 3, attempt=2)
    real.supervisor(2).send_signal(signal.SIGTERM)
    by_term = _stop(real, 2)
    with site.following("resume", str(real.run.path)) as last:
        said_by(last)
    return Resumed(real, by_ctrl_c, printed, follower.returncode, by_term, real.ended(3), last.returncode)


def _stop(real: RealRun, attempt: int) -> Stop:
    report = real.ended(attempt)
    return Stop(report, real.run.checkpoint_steps(), real.written()[-1]["step"], real.left())
