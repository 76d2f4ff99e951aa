"""Driver overhead is what a step takes beyond the busy time of its slowest ranks."""

from __future__ import annotations

import pytest

from hpcflow.driver.clock import StepClock


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_outside_of_calls_is_the_drivers() -> None:
    ticks = Ticks()
    clock = StepClock(ticks)
    with clock.phase("generate"):
        ticks.now += 3.0
    ticks.now += 1.0
    seconds = clock.seconds()
    assert seconds["generate"] == pytest.approx(3.0)
    assert seconds["step"] == pytest.approx(4.0)
    # No call was waited for, so all of it counts as the driver's.
    assert seconds["driver"] == pytest.approx(4.0)


def test_a_phase_that_comes_twice_is_added_up() -> None:
    ticks = Ticks()
    clock = StepClock(ticks)
    for _ in range(2):
        with clock.phase("weights"):
            ticks.now += 2.0
    assert clock.seconds()["weights"] == pytest.approx(4.0)


def test_phases_do_not_nest() -> None:
    clock = StepClock(Ticks())
    with clock.phase("a"), pytest.raises(AssertionError), clock.phase("b"):
        pass
