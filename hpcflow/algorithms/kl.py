"""Divergence of the policy from a reference, per token, and the controllers of its weight.

With d = log p(token) - log p_ref(token) and the token sampled from the policy, the estimators of
KL(policy, ref) are (Schulman, "Approximating KL Divergence", 2020)

    k1    d                     unbiased, high variance
    abs   |d|
    k2    d^2 / 2               its gradient is that of the KL
    k3    exp(-d) - 1 + d       unbiased, never negative

A divergence is used either in the reward (`kl_for_reward`, without gradient) or in the loss
(`kl_for_loss`, with the gradient of the KL whatever the estimator), never in both. Nothing here
decides which: see `ppo.Ppo`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, assert_never

import torch
from torch import Tensor

from hpcflow.algorithms.masks import select

KlEstimator = Literal["k1", "abs", "k2", "k3"]


@dataclass(frozen=True)
class Limits:
    """Clamps that keep one wild token from ruling a batch; a token beyond has no gradient."""

    exponent: float = 20.0
    """Limit of |d|, which is what goes into exp()."""
    value: float = 10.0
    """Limit of the magnitude of the estimate."""


LIMITS = Limits()


def bounded_difference(a_BT: Tensor, b_BT: Tensor, limits: Limits = LIMITS) -> Tensor:
    """`a - b` clamped so that exp() of it is finite; no gradient beyond the clamp."""
    return (a_BT - b_BT).clamp(-limits.exponent, limits.exponent)


def kl_for_reward(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    *,
    mask_BT: Tensor,
    estimator: KlEstimator,
    limits: Limits = LIMITS,
) -> Tensor:
    """The estimate per token (B, T), 0 where masked, detached."""
    new_BT, ref_BT = select(logprobs_BT.detach(), mask_BT), select(ref_logprobs_BT, mask_BT)
    estimate_BT = _estimate(bounded_difference(new_BT, ref_BT, limits), estimator)
    return estimate_BT.clamp(-limits.value, limits.value).detach()


def kl_for_loss(
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    *,
    mask_BT: Tensor,
    estimator: KlEstimator,
    limits: Limits = LIMITS,
) -> Tensor:
    """The estimate per token (B, T), 0 where masked, with the gradient of k2.

    On samples of the policy the expected gradient of k2, E[d * grad log p], is the gradient of
    KL(policy, ref). Those of k1, abs and k3 are not: they average to 0, to that of another
    distance and to that of KL(ref, policy).
    """
    new_BT, ref_BT = select(logprobs_BT, mask_BT), select(ref_logprobs_BT.detach(), mask_BT)
    d_BT = bounded_difference(new_BT, ref_BT, limits)
    estimate_BT = _estimate(d_BT.detach(), estimator)
    k2_BT = torch.where(estimate_BT.abs() <= limits.value, _estimate(d_BT, "k2"), 0)
    return estimate_BT.clamp(-limits.value, limits.value) + (k2_BT - k2_BT.detach())


def _estimate(d_BT: Tensor, estimator: KlEstimator) -> Tensor:
    match estimator:
        case "k1":
            return d_BT
        case "abs":
            return d_BT.abs()
        case "k2":
            return 0.5 * d_BT.square()
        case "k3":
            return torch.expm1(-d_BT) + d_BT
        case _:
            assert_never(estimator)


@dataclass(frozen=True)
class FixedKl:
    """A weight of the KL term that never changes."""

    beta: float

    def updated(self, kl: float, n: int) -> Self:
        """The controller itself: what was measured does not matter."""
        return self

    def state(self) -> dict[str, float]:
        """Nothing: the weight is a hyper-parameter, so a resumed run takes it from its spec."""
        return {}

    def load(self, state: Mapping[str, float]) -> Self:
        """The controller itself: there is no state."""
        return self


@dataclass(frozen=True)
class AdaptiveKl:
    """A weight that steers the measured KL to a target (Ziegler et al., 2019, section 2.2).

    beta <- beta * (1 + clip(kl / target - 1, -0.2, 0.2) * n / horizon)

    `kl` and `target` share a unit (nats per token, say), `n` and `horizon` share one (samples,
    say). The controller is a value: `updated` gives the next one.
    """

    beta: float
    target: float
    horizon: float

    def updated(self, kl: float, n: int) -> Self:
        """The controller after a step of `n` samples, whose mean KL was `kl`.

        A step longer than the horizon counts as one horizon, so that beta stays positive. Raises
        ValueError where `kl` is not finite: it would spoil beta for the rest of the run.
        """
        if not math.isfinite(kl):
            raise ValueError(f"the measured KL is {kl}; the KL controller needs a finite number")
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, beta=self.beta * (1.0 + error * min(n / self.horizon, 1.0)))

    def state(self) -> dict[str, float]:
        """What a checkpoint must hold."""
        return {"beta": self.beta}

    def load(self, state: Mapping[str, float]) -> Self:
        """The controller as it was when `state()` was taken."""
        return replace(self, beta=state["beta"])


KlController = FixedKl | AdaptiveKl
