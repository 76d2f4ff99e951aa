import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcflow.algorithms.schedule import ScheduleKind, learning_rate_factor


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]),
    ],
)
def test_factors_by_hand(kind: ScheduleKind, expected: list[float]) -> None:
    factors = [learning_rate_factor(s, warmup=2, horizon=6, kind=kind) for s in range(8)]
    assert factors == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_without_warmup_the_first_step_has_the_full_rate(kind: ScheduleKind) -> None:
    assert learning_rate_factor(0, warmup=0, horizon=5, kind=kind) == 1.0


@given(
    st.integers(0, 50),
    st.integers(0, 20),
    st.integers(1, 40),
    st.sampled_from(["linear", "cosine"]),
)
def test_every_step_of_a_run_learns_and_none_after_it(
    step: int, warmup: int, horizon: int, kind: ScheduleKind
) -> None:
    factor = learning_rate_factor(step, warmup=warmup, horizon=horizon, kind=kind)
    assert 0.0 <= factor <= 1.0
    assert (factor > 0.0) == (step < max(horizon, warmup))
