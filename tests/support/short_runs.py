"""Short runs of the whole topology that end early: killed, stopped, and resumed.

They share one spec: 20 steps of 32 samples, each in two optimizer steps, scored by a function that fails for
some problems. So their rows can be compared, whatever happens to a run on its way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.metrics import Row
from tests.support.real_runs import CONFIG, RealRun, Site, arguments, interrupt, said_by

# The straight attempt is killed well after its only checkpoint, so that both resumed attempts repeat some of
# its steps, and well before the next.
STEPS, SAVED, KILLED = 20, 10, 15
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
    f"checkpoint.every_steps={SAVED}",
)


@dataclass(frozen=True)
class Killed:
    """The first attempt of a run, of which one rank was killed with -9.

    `rows` are those of training; `gone_after_s` counts from the kill until no process of the attempt was
    there; `left` is what was found then, and `status` what `hpcflow status --json` said; `printed` and
    `exit_code` are the follower's.
    """

    real: RealRun
    report: ExitReport
    rows: list[Row]
    gone_after_s: float
    left: list[str]
    status: dict[str, Any]
    printed: str
    exit_code: int

    def figures(self, key: str, *, until: int) -> list[Any]:
        """One figure of the training steps 1 .. `until`."""
        return [row[key] for row in self.rows[:until]]


@dataclass(frozen=True)
class Stop:
    """An attempt that was asked to stop: its report, and what there was when it had ended."""

    report: ExitReport
    checkpoints: list[int]
    last_step: int
    left: list[str]


@dataclass(frozen=True)
class Resumed:
    """A killed run that was resumed from its checkpoint, stopped by Ctrl-C, and resumed to its end."""

    real: RealRun
    by_ctrl_c: Stop
    follower_printed: str
    follower_exit_code: int
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
    status = json.loads(site.hpcflow("status", str(real.run.path), "--json").stdout)
    return Killed(
        real, report, real.written(), gone_after_s, left, status, printed, exit_code=follower.returncode
    )


def resumed_run(site: Site, real: RealRun) -> Resumed:
    """Resume the killed run, press Ctrl-C after one step more than was saved, resume to the end."""
    with site.following("resume", str(real.run.path)) as follower:
        real.wait_for_step(SAVED + 1, attempt=2)
        interrupt(follower)
        printed = said_by(follower)
    report, left = real.ended(2), real.left()
    stop = Stop(report, real.run.checkpoint_steps(), real.written()[-1]["step"], left)
    with site.following("resume", str(real.run.path)) as last:
        said_by(last)
    return Resumed(real, stop, printed, follower.returncode, real.ended(3), last.returncode)
