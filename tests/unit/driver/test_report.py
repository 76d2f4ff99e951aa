"""What the driver tells of a run that was resumed, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hpcflow.driver.clock import StepClock
from hpcflow.driver.experience import Experience
from hpcflow.driver.groups import Groups
from hpcflow.driver.learn import Learned
from hpcflow.driver.report import Reporter
from hpcflow.errors import JobFault
from hpcflow.observe.metrics import MetricsWriter
from hpcflow.observe.state import DriverState, StateFile, read_state
from hpcflow.roles.contract import TokenBatch, UpdateReport
from hpcflow.rpc.group import WorkerGroup
from hpcflow.rundir import RunDir

NUMBERS = torch.zeros(1, 2)
TOKENS = TokenBatch(NUMBERS.long().numpy(), torch.tensor([2]).numpy(), torch.tensor([[False, True]]).numpy())
EXPERIENCE = Experience(TOKENS, torch.ones(1), NUMBERS, NUMBERS, None, NUMBERS)


@contextmanager
def reporter(run: RunDir) -> Iterator[Reporter]:
    """Of an attempt that has just begun; its groups have no ranks."""
    nobody = WorkerGroup("nobody", [], token="", timeout_s=1.0)
    first = DriverState(attempt=2, step=0, steps=9, phase="starting", time=0.0, started=0.0)
    made = Reporter(
        MetricsWriter(run.metrics_jsonl),
        StateFile(run.state_json, first),
        Groups(nobody, nobody, None, nobody, nobody),
        attempt=2,
        max_skipped_steps=1,
    )
    try:
        yield made
    finally:
        made.close()
        nobody.close()


def learned(*, skipped: bool) -> Learned:
    """A step of one optimizer step on actor and critic."""
    actor = UpdateReport([0.5], [1.0], [1e-3], [skipped], {"tokens": 1.0}, {})
    critic = UpdateReport([0.5], [1.0], [1e-3], [False], {"tokens": 1.0}, {})
    return Learned([actor], [critic], kl=0.0)


def test_a_resumed_run_is_at_the_step_of_its_checkpoint_before_it_has_trained(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with reporter(run) as resumed:
        resumed.remember(5, {"skipped_streak": 0, "heldout_before": 0.25, "heldout": 0.5})
    state = read_state(run)
    assert state is not None
    assert (state.step, state.checkpoint_step) == (5, 5)
    assert (state.heldout_before, state.heldout) == (0.25, 0.5)


def test_skipped_steps_count_in_a_row_and_across_a_resume(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with reporter(run) as first:
        for step, skipped in enumerate([True, False, True], start=1):
            first.trained(step, EXPERIENCE, learned(skipped=skipped), 0.0, StepClock())
    with reporter(run) as second:
        second.remember(3, first.memory())
        with pytest.raises(JobFault, match="in 2 steps in a row, up to step 4") as caught:
            second.trained(4, EXPERIENCE, learned(skipped=True), 0.0, StepClock())
    assert (caught.value.cause, caught.value.role) == ("non_finite", "actor")
