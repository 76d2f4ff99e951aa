"""One training step on an Experience: advantages on the driver, updates on critic and actor at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hpcflow.algorithms.kl import KlController
from hpcflow.algorithms.masks import masked_mean
from hpcflow.algorithms.ppo import Ppo
from hpcflow.driver.clock import StepClock
from hpcflow.driver.experience import Experience
from hpcflow.driver.groups import Groups, take_rows
from hpcflow.driver.minibatches import RankShare, shares, shuffled
from hpcflow.plan.plan import Batching
from hpcflow.roles import contract
from hpcflow.roles.contract import ActorUpdate, CriticUpdate, Floats, UpdateReport


@dataclass(frozen=True)
class Learned:
    """Reports of all ranks, and the mean KL to the reference per token."""

    actor: list[UpdateReport]
    critic: list[UpdateReport]
    kl: float


@dataclass(frozen=True)
class Learner:
    """Trains actor and critic on one step's experience."""

    ppo: Ppo
    batching: Batching
    groups: Groups
    seed: int

    def learn(self, step: int, experience: Experience, kl: KlController, clock: StepClock) -> Learned:
        """All epochs and minibatches of one step."""
        mask_BT = experience.mask_BT
        rewards_BT, kl_BT = self.ppo.token_rewards(
            experience.scores_B,
            experience.logprobs_BT,
            ref_logprobs_BT=experience.reference_BT,
            mask_BT=mask_BT,
            beta=kl.beta,
        )
        advantages_BT, returns_BT = self.ppo.advantages(rewards_BT, experience.values_BT, mask_BT=mask_BT)
        order = shuffled(
            samples=self.batching.samples_per_step,
            epochs=self.batching.epochs,
            seed=self.seed,
            step=step,
        )
        mask = experience.batch.mask
        with clock.phase("update"):
            critic = self.groups.critic.start(
                contract.Critic.update,
                [
                    _critic_update(experience, returns_BT, share)
                    for share in shares(order, mask, self.batching.critic, self.groups.critic.world_size)
                ],
            )
            actor = self.groups.actor.start(
                contract.Actor.update,
                [
                    self._actor_update(experience, advantages_BT, kl.beta, share)
                    for share in shares(order, mask, self.batching.actor, self.groups.actor.world_size)
                ],
            )
            clock.wait(actor, critic)
        kl_mean = float(masked_mean(kl_BT, mask_BT))
        return Learned(actor.result(), critic.result(), kl_mean)

    def _actor_update(
        self, experience: Experience, advantages_BT: Tensor, beta: float, share: RankShare
    ) -> ActorUpdate:
        in_loss = self.ppo.kl_placement == "loss" and experience.reference_BT is not None
        return ActorUpdate(
            batch=take_rows(experience.batch, share.rows.tolist()),
            minibatches=share.minibatches,
            old_logprobs=_rows(experience.logprobs_BT, share),
            advantages=_rows(advantages_BT, share),
            reference_logprobs=_rows(experience.reference_BT, share) if in_loss else None,
            kl_coefficient=beta if in_loss else 0.0,
        )


def _critic_update(experience: Experience, returns_BT: Tensor, share: RankShare) -> CriticUpdate:
    return CriticUpdate(
        batch=take_rows(experience.batch, share.rows.tolist()),
        minibatches=share.minibatches,
        old_values=_rows(experience.values_BT, share),
        returns=_rows(returns_BT, share),
    )


def _rows(per_token: Tensor | None, share: RankShare) -> Floats:
    assert per_token is not None
    return np.ascontiguousarray(per_token.numpy()[share.rows], dtype=np.float32)


def total(reports: Sequence[UpdateReport], name: str) -> float:
    """A masked sum over all ranks and optimizer steps."""
    return sum(report.sums.get(name, 0.0) for report in reports)


def mean_loss(reports: Sequence[UpdateReport]) -> float:
    """Mean over optimizer steps of the global loss: each rank reports its share of it."""
    steps = len(reports[0].losses)
    return sum(sum(report.losses) for report in reports) / steps if steps else 0.0
