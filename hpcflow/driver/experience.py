"""Experience: what one step's samples become before anything is trained on them.

B samples of the whole step, T tokens. Built on the CPU from what the roles answer; `check` states the
shapes. A sample that could not be scored, or that the engine gave up on, keeps its row and loses its
mask: it takes part in no sum and no count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcflow.driver.prompts import Prompt
from hpcflow.roles.contract import Floats, Sample, TokenBatch


@dataclass(frozen=True)
class Experience:
    """One step's samples and what is known of each token; float32 but for the mask."""

    batch: TokenBatch
    scores_B: Tensor
    rollout_logprobs_BT: Tensor
    logprobs_BT: Tensor
    reference_BT: Tensor | None
    values_BT: Tensor

    @property
    def mask_BT(self) -> Tensor:
        """True on tokens that train."""
        return torch.from_numpy(self.batch.mask)

    def check(self) -> None:
        """Shapes; a violation is a bug of ours. Numbers that are not finite are for the engines to skip."""
        rows, width = self.batch.tokens.shape
        assert self.batch.mask.shape == (rows, width)
        assert self.scores_B.shape == (rows,)
        per_token = [self.rollout_logprobs_BT, self.logprobs_BT, self.values_BT]
        if self.reference_BT is not None:
            per_token.append(self.reference_BT)
        for tensor in per_token:
            assert tensor.shape == (rows, width), (tensor.shape, (rows, width))


def token_batch(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> TokenBatch:
    """Right-padded rows of prompt and response; `prompts[i]` belongs to `samples[i]`.

    Every sampled token trains, the stop token included; an aborted sample trains nothing. The mask
    comes from what was sampled, never from ids that look like padding or end of text.
    """
    lengths = [
        len(prompt.token_ids) + len(sample.tokens) for prompt, sample in zip(prompts, samples, strict=True)
    ]
    shape = (len(samples), max(lengths))
    tokens = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.bool_)
    for row, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        start, end = len(prompt.token_ids), lengths[row]
        tokens[row, :start] = prompt.token_ids
        tokens[row, start:end] = sample.tokens
        mask[row, start:end] = sample.finish != "abort"
    return TokenBatch(tokens, np.asarray(lengths, dtype=np.int64), mask)


def rollout_logprobs(prompts: Sequence[Prompt], samples: Sequence[Sample], width: int) -> Tensor:
    """The engine's log-probabilities as (B, T), 0 outside responses."""
    result = np.zeros((len(samples), width), dtype=np.float32)
    for row, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        start = len(prompt.token_ids)
        result[row, start : start + len(sample.logprobs)] = sample.logprobs
    return torch.from_numpy(result)


def without_rows(batch: TokenBatch, faulty: Sequence[int]) -> TokenBatch:
    """The batch with the mask of the given rows cleared."""
    mask = batch.mask.copy()
    mask[list(faulty)] = False
    return TokenBatch(batch.tokens, batch.lengths, mask)


def joined(parts: Sequence[Floats]) -> Tensor:
    """Arrays of consecutive rows, gathered from the ranks of a group."""
    return torch.from_numpy(np.concatenate(parts))
