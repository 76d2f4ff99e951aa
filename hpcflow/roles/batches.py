"""Token batches as tensors: micro-batches of rows, trimmed to their own longest row.

Trimming saves compute and changes nothing: positions after a row's end are never read. Nothing here
knows a model or an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcflow.roles.contract import Floats, Ints, TokenBatch


@dataclass(frozen=True)
class Rows:
    """Some rows of a batch on the device: tokens (B, T) int64, lengths (B,), mask (B, T) bool."""

    index: Ints
    width: int
    tokens_BT: Tensor
    lengths_B: Tensor
    mask_BT: Tensor

    def take(self, per_token: Floats) -> Tensor:
        """The same rows and columns of a per-token array, on the same device."""
        chosen = np.ascontiguousarray(per_token[self.index, : self.width])
        return torch.from_numpy(chosen).to(self.tokens_BT.device)


def rows_of(batch: TokenBatch, index: Ints, device: str) -> Rows:
    """Rows `index` of a batch, trimmed to the longest of them (at least one column)."""
    width = max(1, int(batch.lengths[index].max(initial=1)))
    tokens = np.ascontiguousarray(batch.tokens[index, :width])
    mask = np.ascontiguousarray(batch.mask[index, :width])
    return Rows(
        index=index,
        width=width,
        tokens_BT=torch.from_numpy(tokens).to(device),
        lengths_B=torch.from_numpy(batch.lengths[index].copy()).to(device),
        mask_BT=torch.from_numpy(mask).to(device),
    )


def split_index(index: Ints, microbatch: int) -> Iterator[Ints]:
    """Cut row numbers into micro-batches; the last may be shorter."""
    for start in range(0, len(index), microbatch):
        yield index[start : start + microbatch]


def per_token(
    batch: TokenBatch, *, microbatch: int, device: str, compute: Callable[[Rows], Tensor]
) -> Floats:
    """`compute` on each micro-batch without gradients, gathered into one (B, T) float32 array."""
    result = np.zeros(batch.tokens.shape, dtype=np.float32)
    every = np.arange(len(batch.tokens), dtype=np.int64)
    with torch.no_grad():
        for index in split_index(every, microbatch):
            rows = rows_of(batch, index, device)
            result[index, : rows.width] = compute(rows).float().cpu().numpy()
    return result
