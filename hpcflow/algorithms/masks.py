"""Selection by mask, and the arithmetic of one token position.

Masks are booleans, True on trainable tokens. Statistics are taken over all trainable tokens of the
tensor that is given: who wants a global statistic gives the global batch. Nothing here communicates
between ranks.
"""

import torch
from torch import Tensor
from torch.nn import functional

VARIANCE_FLOOR = 1e-8


def select(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`x_BT` where the mask is True, 0 elsewhere; the gradient is 0 there, too."""
    return torch.where(mask_BT, x_BT, 0)


def masked_sum(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over all trainable tokens (a scalar); 0, attached to the graph, where there are none."""
    return select(x_BT, mask_BT).sum()


def masked_mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over all trainable tokens (a scalar); 0, attached to the graph, where there are none."""
    return masked_sum(x_BT, mask_BT) / mask_BT.sum().clamp(min=1)


def whiten(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Shift and scale to mean 0 and variance 1 over all trainable tokens; 0 at the others.

    The variance is the biased one (divided by N, not N - 1) and gets `VARIANCE_FLOOR` added. Fewer
    than two trainable tokens have no variance: they are returned as they are.
    """
    if mask_BT.sum() < 2:
        return select(x_BT, mask_BT)
    # In float64 the mean of equal float32 numbers is exact, so equal numbers whiten to exactly 0;
    # in float32 the rounding error of the mean would be blown up by 1 / sqrt(VARIANCE_FLOOR).
    x_N = x_BT[mask_BT].double()
    centred_N = x_N - x_N.mean()
    white_N = centred_N / (centred_N.square().mean() + VARIANCE_FLOOR).sqrt()
    return torch.zeros_like(x_BT).masked_scatter(mask_BT, white_N.to(x_BT.dtype))


def last_trainable(mask_BT: Tensor) -> Tensor:
    """A mask that is True on the last trainable token of each row, if the row has one."""
    trainable_from_here_BT = mask_BT.flip(-1).cumsum(-1).flip(-1)
    return mask_BT & (trainable_from_here_BT == 1)


def token_logprobs(
    logits_BTV: Tensor, tokens_BT: Tensor, *, temperature: float, mask_BT: Tensor | None = None
) -> Tensor:
    """Log-probability of each token under softmax(logits / temperature), as float32 (B, T).

    The logits at t - 1 predict token t, so column 0 is 0. With a mask only the trainable tokens
    are computed and the others are 0: this takes memory for N rather than B * T distributions,
    and logits at unused positions may be anything.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    used_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if mask_BT is None else mask_BT.clone()
    used_BT[:, 0] = False
    logits_NV = logits_BTV[:, :-1][used_BT[:, 1:]].float() / temperature
    tokens_N = tokens_BT[used_BT]
    logprobs_N = logits_NV.log_softmax(-1).gather(-1, tokens_N[:, None]).squeeze(-1)
    return logprobs_N.new_zeros(tokens_BT.shape).masked_scatter(used_BT, logprobs_N)


def values_before_tokens(head_BT: Tensor) -> Tensor:
    """Re-index the output of a value head by the token that comes next; column 0 is 0.

    The head at position t - 1 has seen tokens 0..t-1, which is the state before token t.
    """
    return functional.pad(head_BT[:, :-1], (1, 0))
