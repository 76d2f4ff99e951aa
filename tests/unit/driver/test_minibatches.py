"""Which rows make which optimizer step: the same whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.driver.minibatches import shares, shuffled
from hpcflow.plan.plan import TrainBatching

SAMPLES, EPOCHS, MINIBATCH = 12, 2, 4


def batching(world_size: int) -> TrainBatching:
    return TrainBatching(
        minibatch_samples=MINIBATCH,
        rank_minibatch_samples=MINIBATCH // world_size,
        microbatch_per_gpu=1,
        accumulation=MINIBATCH // world_size,
        optimizer_steps_per_step=SAMPLES // MINIBATCH * EPOCHS,
        optimizer_steps_total=100,
    )


def mask() -> np.ndarray:
    return np.arange(5) < np.arange(SAMPLES)[:, None] % 5


def order(seed: int = 3, step: int = 1) -> np.ndarray:
    return shuffled(samples=SAMPLES, epochs=EPOCHS, seed=seed, step=step)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_minibatch_is_the_same_set_of_rows_for_any_number_of_ranks(world_size: int) -> None:
    expected = [set(rows) for rows in order().reshape(-1, MINIBATCH).tolist()]
    parts = shares(order(), mask(), batching(world_size), world_size)
    for number, rows in enumerate(expected):
        global_rows = [row for part in parts for row in part.rows[part.minibatches.order[number]].tolist()]
        assert len(global_rows) == MINIBATCH
        assert set(global_rows) == rows


def test_every_epoch_trains_on_every_row_once() -> None:
    for rows in order().tolist():
        assert sorted(rows) == list(range(SAMPLES))


def test_denominators_count_the_trainable_tokens_of_all_ranks() -> None:
    trainable = mask().sum(axis=1)
    expected = [trainable[rows].sum() for rows in order().reshape(-1, MINIBATCH)]
    for part in shares(order(), mask(), batching(2), 2):
        assert part.minibatches.denominators.tolist() == expected


def test_a_rank_gets_only_the_rows_it_trains_on() -> None:
    one_epoch = shuffled(samples=SAMPLES, epochs=1, seed=0, step=1)
    parts = shares(one_epoch, mask(), batching(2), 2)
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(SAMPLES))


def test_the_order_depends_on_seed_and_step_alone() -> None:
    assert (order() == order()).all()
    assert (order(step=1) != order(step=2)).any()
    assert (order(seed=3) != order(seed=4)).any()
