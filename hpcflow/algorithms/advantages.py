"""Rewards per token and generalized advantage estimation.

Time runs over trainable tokens only. A masked gap in a row (the output of a tool, the next turn of
a user) is no transition: nothing is discounted across it, nothing is bootstrapped from it, and
rewards or values that stand there are not read.

The result is without gradient: advantages and returns are targets, not functions of the weights.
"""

import torch
from torch import Tensor

from hpcflow.algorithms.masks import last_trainable, select


def place_scores(scores_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Put the score of each row on its last trainable token; (B, T), 0 elsewhere.

    A row without trainable tokens has no place for a score, and then none is given.
    """
    return torch.where(last_trainable(mask_BT), scores_B.detach()[:, None], 0)


def rewards_with_kl(scores_B: Tensor, kl_BT: Tensor, *, mask_BT: Tensor, beta: float) -> Tensor:
    """-beta * kl on each trainable token, plus the score of the row on the last of them.

    With beta 0 the KL is not even looked at, so that the result is that of a run without one.
    """
    rewards_BT = place_scores(scores_B, mask_BT)
    if beta == 0:
        return rewards_BT
    return rewards_BT - beta * select(kl_BT.detach(), mask_BT)


def gae(
    rewards_BT: Tensor, values_BT: Tensor, *, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, T) and 0 where masked (Schulman et al., 2016).

    Over the trainable tokens i = 1..n of a row, with V_{n+1} = A_{n+1} = 0:

        delta_i = r_i + gamma * V_{i+1} - V_i
        A_i     = delta_i + gamma * lam * A_{i+1}
        R_i     = A_i + V_i

    The values are those of the critic at the time of the rollout.
    """
    rewards_BT = select(rewards_BT.detach(), mask_BT)
    values_BT = select(values_BT.detach(), mask_BT)
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = values_BT.new_zeros(len(values_BT))
    next_advantage_B = torch.zeros_like(next_value_B)
    for t in reversed(range(values_BT.shape[1])):
        trains_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        # Over a masked token the pair of the next trainable token is carried on unchanged.
        next_value_B = torch.where(trains_B, values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(trains_B, advantage_B, next_advantage_B)
        advantages_BT[:, t] = select(advantage_B, trains_B)
    return advantages_BT, advantages_BT + values_BT
