"""Micro-batches cover every row once and never read beyond a row's end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcflow.roles.batches import Rows, per_token, rows_of, split_index
from hpcflow.roles.contract import TokenBatch


def batch(lengths: list[int], width: int = 8) -> TokenBatch:
    columns = np.arange(width)
    lengths_B = np.asarray(lengths, dtype=np.int64)
    inside = columns < lengths_B[:, None]
    tokens = np.where(inside, columns + 1, 0).astype(np.int64)
    return TokenBatch(tokens, lengths_B, inside & (columns >= 1))


@pytest.mark.parametrize("microbatch", [1, 2, 3, 5, 9])
def test_what_is_computed_does_not_depend_on_the_microbatch(microbatch: int) -> None:
    rows = batch([3, 8, 1, 5, 2])

    def doubled(part: Rows) -> Tensor:
        return torch.where(part.mask_BT, part.tokens_BT.float() * 2, 0.0)

    result = per_token(rows, microbatch=microbatch, device="cpu", compute=doubled)
    expected = np.where(rows.mask, rows.tokens * 2, 0)
    assert result.dtype == np.float32
    assert (result == expected).all()


def test_a_microbatch_is_as_wide_as_its_longest_row() -> None:
    part = rows_of(batch([3, 8, 1]), np.array([0, 2]), "cpu")
    assert part.tokens_BT.shape == (2, 3)
    assert part.lengths_B.tolist() == [3, 1]


def test_per_token_arrays_are_cut_like_their_rows() -> None:
    part = rows_of(batch([3, 8, 1]), np.array([2, 0]), "cpu")
    values = np.arange(24, dtype=np.float32).reshape(3, 8)
    assert part.take(values).tolist() == [[16, 17, 18], [0, 1, 2]]


def test_rows_of_no_length_keep_one_column() -> None:
    assert rows_of(batch([0]), np.array([0]), "cpu").tokens_BT.shape == (1, 1)


def test_splitting_uses_every_row_once_in_order() -> None:
    index = np.arange(7)
    parts = list(split_index(index, 3))
    assert [len(part) for part in parts] == [3, 3, 1]
    assert np.concatenate(parts).tolist() == index.tolist()
