"""Proximal policy optimization, composed of the functions of this package.

The driver calls `token_rewards` and then `advantages` once per step, on the whole global batch and
with the numbers of rollout time. Then the ranks of the actor call `policy_loss` and those of the
critic `value_loss` on their micro-batches, once per epoch and minibatch.

A `Ppo` is hyper-parameters and nothing else. It holds no state, and it does not choose the weight
of the KL term: beta comes from a controller (`kl.FixedKl`, `kl.AdaptiveKl`) that the driver keeps.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hpcflow.algorithms.advantages import gae, rewards_with_kl
from hpcflow.algorithms.kl import KlEstimator, kl_for_reward
from hpcflow.algorithms.losses import (
    Clip,
    PolicyLoss,
    ValueLoss,
    clipped_policy_loss,
    clipped_value_loss,
    kl_loss,
)
from hpcflow.algorithms.masks import whiten

KlPlacement = Literal["reward", "loss"]


@dataclass(frozen=True)
class Ppo:
    """PPO with a critic: GAE, clipped losses, and a KL term in the reward or in the loss."""

    gamma: float
    lam: float
    clip_low: float
    clip_high: float
    dual_clip: float | None
    value_clip: float | None
    kl_estimator: KlEstimator
    kl_placement: KlPlacement
    whiten_advantages: bool

    def token_rewards(
        self,
        scores_B: Tensor,
        logprobs_BT: Tensor,
        *,
        ref_logprobs_BT: Tensor | None,
        mask_BT: Tensor,
        beta: float,
    ) -> tuple[Tensor, Tensor]:
        """Rewards and the KL to the reference, each (B, T) and 0 where masked.

        The KL is part of the rewards only where that is its placement; it is given in any case,
        for metrics and the controller, and is 0 where there is no reference.
        """
        if ref_logprobs_BT is None:
            if beta != 0:
                raise _no_reference(beta)
            kl_BT = torch.zeros_like(logprobs_BT)
        else:
            kl_BT = kl_for_reward(logprobs_BT, ref_logprobs_BT, mask_BT=mask_BT, estimator=self.kl_estimator)
        weight = beta if self.kl_placement == "reward" else 0.0
        return rewards_with_kl(scores_B, kl_BT, mask_BT=mask_BT, beta=weight), kl_BT

    def advantages(self, rewards_BT: Tensor, values_BT: Tensor, *, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages (whitened over the batch if so chosen) and returns, each (B, T).

        The returns, which are the targets of the critic, are never whitened.
        """
        advantages_BT, returns_BT = gae(
            rewards_BT, values_BT, mask_BT=mask_BT, gamma=self.gamma, lam=self.lam
        )
        if self.whiten_advantages:
            advantages_BT = whiten(advantages_BT, mask_BT)
        return advantages_BT, returns_BT

    def policy_loss(
        self,
        logprobs_BT: Tensor,
        old_logprobs_BT: Tensor,
        *,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        denominator: float,
        ref_logprobs_BT: Tensor | None = None,
        beta: float = 0.0,
    ) -> PolicyLoss:
        """Loss of the actor on a micro-batch; `old` are the log-probabilities of rollout time.

        The last two arguments matter only where the KL is placed in the loss.
        """
        clip = Clip(low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        policy = clipped_policy_loss(
            logprobs_BT,
            old_logprobs_BT,
            advantages_BT=advantages_BT,
            mask_BT=mask_BT,
            denominator=denominator,
            clip=clip,
        )
        if self.kl_placement == "reward" or beta == 0:
            return policy
        if ref_logprobs_BT is None:
            raise _no_reference(beta)
        kl = kl_loss(
            logprobs_BT,
            ref_logprobs_BT,
            mask_BT=mask_BT,
            denominator=denominator,
            estimator=self.kl_estimator,
        )
        return replace(
            policy,
            loss=policy.loss + beta * kl.loss,
            loss_sum=policy.loss_sum + beta * kl.loss_sum,
        )

    def value_loss(
        self,
        values_BT: Tensor,
        old_values_BT: Tensor,
        *,
        returns_BT: Tensor,
        mask_BT: Tensor,
        denominator: float,
    ) -> ValueLoss:
        """Loss of the critic on a micro-batch; `old` are the values of rollout time."""
        return clipped_value_loss(
            values_BT,
            old_values_BT,
            returns_BT=returns_BT,
            mask_BT=mask_BT,
            denominator=denominator,
            clip=self.value_clip,
        )


def _no_reference(beta: float) -> ValueError:
    return ValueError(
        f"the KL weight is {beta} but there are no reference log-probabilities; "
        "give them, or set the weight to 0"
    )
