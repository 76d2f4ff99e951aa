"""A run that is asked to stop saves and leaves; resumed, it goes on as if nothing had been."""

from __future__ import annotations

import pytest

from tests.support.short_runs import STEPS, Killed, Resumed, Stop

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]


def check_stop(stop: Stop) -> None:
    assert (stop.report.outcome, stop.report.cause) == ("stopped", "stopped")
    assert stop.report.step == stop.last_step
    assert stop.checkpoints[-1] == stop.last_step
    assert stop.left == []


def test_ctrl_c_of_a_follower_saves_and_stops(resumed: Resumed) -> None:
    check_stop(resumed.by_ctrl_c)
    assert 3 <= resumed.by_ctrl_c.last_step < STEPS
    assert resumed.follower_exit_code == 130, resumed.follower_printed
    assert "saving a checkpoint; press again to end at once" in resumed.follower_printed
    assert f"checkpoint of step {resumed.by_ctrl_c.last_step}" in resumed.follower_printed
    assert "hpcflow resume" in resumed.follower_printed


def test_term_to_the_supervisor_saves_and_stops(resumed: Resumed) -> None:
    check_stop(resumed.by_term)
    assert resumed.by_term.report.attempt == 2
    assert resumed.by_term.last_step < STEPS


def test_each_attempt_goes_on_at_the_next_step(resumed: Resumed) -> None:
    first, second = resumed.by_ctrl_c.last_step, resumed.by_term.last_step
    attempts = [1] * first + [2] * (second - first) + [3] * (STEPS - second)
    written = resumed.real.written()
    assert [row["attempt"] for row in written] == attempts
    assert [row["step"] for row in written] == list(range(1, STEPS + 1))


def test_the_last_attempt_finishes_the_run(resumed: Resumed) -> None:
    assert (resumed.last.outcome, resumed.last.attempt) == ("done", 3)
    assert resumed.last_exit_code == 0
    assert sorted(resumed.real.heldout()) == [0, STEPS]
    assert resumed.real.run.checkpoint_steps()[-1] == STEPS


def test_the_resumed_run_is_the_straight_run(straight: Killed, resumed: Resumed) -> None:
    """Samples, and so rewards, are the same; figures of training too, to the digit."""
    steps = len(straight.real.rows())
    assert steps >= 12
    keys = ("reward", "faulty_samples", "response_tokens", "learning_rate", "loss", "value_loss")
    for key in (*keys, "grad_norm", "critic_grad_norm", "kl"):
        assert resumed.real.figures(key, until=steps) == straight.real.figures(key), key
