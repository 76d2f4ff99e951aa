"""A run that is killed or asked to stop goes on, resumed, as if nothing had been."""

from __future__ import annotations

import pytest

from tests.support.short_runs import KILLED, SAVED, STEPS, Killed, Resumed

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]


def test_ctrl_c_of_a_follower_saves_and_stops(resumed: Resumed) -> None:
    stop = resumed.by_ctrl_c
    assert (stop.report.outcome, stop.report.cause, stop.report.attempt) == ("stopped", "stopped", 2)
    assert SAVED < stop.last_step < STEPS
    assert stop.report.step == stop.last_step
    assert stop.checkpoints == [SAVED, stop.last_step]
    assert stop.left == []
    assert resumed.follower_exit_code == 130, resumed.follower_printed
    assert "saving a checkpoint; press again to end at once" in resumed.follower_printed
    assert f"checkpoint of step {stop.last_step}" in resumed.follower_printed
    assert "hpcflow resume" in resumed.follower_printed


def test_each_attempt_goes_on_at_the_step_after_the_last_checkpoint(
    straight: Killed, resumed: Resumed
) -> None:
    killed, stopped = len(straight.rows), resumed.by_ctrl_c.last_step
    assert [(row["attempt"], row["step"]) for row in resumed.real.written()] == [
        *((1, step) for step in range(1, killed + 1)),
        *((2, step) for step in range(SAVED + 1, stopped + 1)),
        *((3, step) for step in range(stopped + 1, STEPS + 1)),
    ]


def test_the_last_attempt_finishes_the_run(resumed: Resumed) -> None:
    assert (resumed.last.outcome, resumed.last.attempt) == ("done", 3)
    assert resumed.last_exit_code == 0
    assert sorted(resumed.real.heldout()) == [0, STEPS]
    assert resumed.real.run.checkpoint_steps()[-1] == STEPS


def test_the_resumed_run_is_the_straight_run(straight: Killed, resumed: Resumed) -> None:
    """Samples, and so rewards, are the same; figures of training too, to the digit."""
    steps = len(straight.rows)
    assert resumed.by_ctrl_c.last_step < KILLED <= steps, "both attempts repeat steps of the first"
    keys = ("reward", "faulty_samples", "response_tokens", "learning_rate", "loss", "value_loss")
    for key in (*keys, "grad_norm", "critic_grad_norm", "kl"):
        assert resumed.real.figures(key, until=steps) == straight.figures(key, until=steps), key
