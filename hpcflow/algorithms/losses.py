"""Losses of one micro-batch, and the sums from which a caller computes metrics.

A loss is the sum over the trainable tokens given, divided by `denominator`: the number of trainable
tokens of the global optimizer batch, over all ranks and micro-batches. Where an engine averages
gradients over W ranks and a accumulation steps the caller gives count / (W * a). Gradients of
micro-batches then add up to that of the whole batch, however it is cut.

Metrics are detached scalars. All are sums, to be added over micro-batches and ranks and then
divided by `tokens`, except `ratio_max`, of which the maximum is taken. Nothing here communicates.

A micro-batch without trainable tokens has loss 0, attached to the graph, so that its rank enters
every collective of backward().
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcflow.algorithms.kl import KlEstimator, bounded_difference, kl_for_loss, kl_for_reward
from hpcflow.algorithms.masks import masked_sum, select


@dataclass(frozen=True)
class Clip:
    """How far the probability ratio may move a token: within 1 - low .. 1 + high."""

    low: float
    high: float
    dual: float | None = None
    """Bound, above 1, on the loss of a token with negative advantage A: at most -dual * A."""


@dataclass(frozen=True)
class PolicyLoss:
    """The policy loss of a micro-batch and its sums."""

    loss: Tensor
    loss_sum: Tensor
    """Sum over tokens, not divided."""
    tokens: Tensor
    clipped: Tensor
    """Number of tokens whose gradient a clip has stopped."""
    kl_sum: Tensor
    """k3 estimate of KL(old, new), summed over tokens."""
    ratio_max: Tensor
    """Largest probability ratio; 0 where there is no trainable token."""


@dataclass(frozen=True)
class ValueLoss:
    """The value loss of a micro-batch and its sums."""

    loss: Tensor
    loss_sum: Tensor
    """Sum over tokens, not divided."""
    tokens: Tensor
    clipped: Tensor
    """Number of tokens whose gradient the clip has stopped."""


@dataclass(frozen=True)
class KlLoss:
    """The KL to the reference as a loss term of a micro-batch."""

    loss: Tensor
    loss_sum: Tensor
    """Sum of the estimate over tokens, not divided."""


def clipped_policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    *,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    denominator: float,
    clip: Clip,
) -> PolicyLoss:
    """Clipped surrogate of PPO (Schulman et al., 2017), with dual clip (Ye et al., 2020).

    Per token, with rho = exp(new - old): -min(rho * A, clip(rho, 1 - low, 1 + high) * A), and where
    A < 0 no more than -dual * A.
    """
    new_BT, old_BT = select(logprobs_BT, mask_BT), select(old_logprobs_BT.detach(), mask_BT)
    advantages_BT = select(advantages_BT.detach(), mask_BT)
    ratio_BT = bounded_difference(new_BT, old_BT).exp()
    free_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - clip.low, 1 + clip.high)
    token_loss_BT = torch.maximum(free_BT, clipped_BT)
    if clip.dual is not None:
        bounded_BT = torch.minimum(token_loss_BT, -clip.dual * advantages_BT)
        token_loss_BT = torch.where(advantages_BT < 0, bounded_BT, token_loss_BT)
    loss_sum = token_loss_BT.sum()
    kl_BT = kl_for_reward(old_BT, new_BT, mask_BT=mask_BT, estimator="k3")
    return PolicyLoss(
        loss=loss_sum / _positive(denominator),
        loss_sum=loss_sum.detach(),
        tokens=mask_BT.sum(),
        clipped=(token_loss_BT != free_BT).sum(),
        kl_sum=kl_BT.sum(),
        ratio_max=select(ratio_BT.detach(), mask_BT).max(),
    )


def clipped_value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    *,
    returns_BT: Tensor,
    mask_BT: Tensor,
    denominator: float,
    clip: float | None,
) -> ValueLoss:
    """Half the squared error to the returns, clipped around the values of the rollout.

    Per token: 0.5 * max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2); with clip None
    the plain 0.5 * (V - R)^2.
    """
    new_BT, old_BT = select(values_BT, mask_BT), select(old_values_BT.detach(), mask_BT)
    returns_BT = select(returns_BT.detach(), mask_BT)
    free_BT = (new_BT - returns_BT).square()
    error_BT = free_BT
    if clip is not None:
        near_old_BT = old_BT + (new_BT - old_BT).clamp(-clip, clip)
        error_BT = torch.maximum(free_BT, (near_old_BT - returns_BT).square())
    loss_sum = 0.5 * error_BT.sum()
    return ValueLoss(
        loss=loss_sum / _positive(denominator),
        loss_sum=loss_sum.detach(),
        tokens=mask_BT.sum(),
        clipped=(error_BT != free_BT).sum(),
    )


def kl_loss(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    *,
    mask_BT: Tensor,
    denominator: float,
    estimator: KlEstimator,
) -> KlLoss:
    """KL(policy, ref) over the trainable tokens, not yet weighted by beta."""
    kl_BT = kl_for_loss(logprobs_BT, ref_logprobs_BT, mask_BT=mask_BT, estimator=estimator)
    loss_sum = masked_sum(kl_BT, mask_BT)
    return KlLoss(loss=loss_sum / _positive(denominator), loss_sum=loss_sum.detach())


def _positive(denominator: float) -> float:
    # The count is global, so all ranks raise together and none waits for another.
    if not denominator > 0:
        raise ValueError(
            f"the denominator is {denominator}; give the global count of trainable tokens, "
            "and skip a step that has none"
        )
    return denominator
