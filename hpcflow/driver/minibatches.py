"""Which rows make which optimizer step, on which rank.

The minibatches of a step depend on seed and step alone, never on the number of ranks: minibatch j is a
set of global rows, of which each rank gets an equal share. A rank receives only the rows that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcflow.driver.draws import permutation
from hpcflow.plan.plan import TrainBatching
from hpcflow.roles.contract import Bools, Ints, Minibatches


@dataclass(frozen=True)
class RankShare:
    """The global rows that one rank needs, and its minibatches in terms of those."""

    rows: Ints
    minibatches: Minibatches


def shuffled(*, samples: int, epochs: int, seed: int, step: int) -> Ints:
    """(epochs, samples) row orders, one permutation per epoch."""
    return np.stack([permutation(samples, f"minibatches {seed} {step} {epoch}") for epoch in range(epochs)])


def shares(order: Ints, mask: Bools, batching: TrainBatching, world_size: int) -> list[RankShare]:
    """One share per rank. `order` is (epochs, samples), `mask` (samples, T).

    `denominators` count the trainable tokens of each minibatch over all ranks.
    """
    steps_M = order.reshape(-1, batching.minibatch_samples)
    trainable_B = mask.sum(axis=1)
    denominators = trainable_B[steps_M].sum(axis=1).astype(np.float32)
    by_rank = steps_M.reshape(len(steps_M), world_size, batching.rank_minibatch_samples)
    return [_share(by_rank[:, rank], denominators) for rank in range(world_size)]


def _share(steps_R: Ints, denominators: np.ndarray[tuple[int], np.dtype[np.float32]]) -> RankShare:
    rows, local = np.unique(steps_R, return_inverse=True)
    order = local.reshape(steps_R.shape).astype(np.int64)
    return RankShare(rows, Minibatches(order, denominators))
