from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from hpcflow.algorithms.kl import kl_for_reward
from hpcflow.algorithms.masks import token_logprobs, whiten
from hpcflow.algorithms.ppo import Ppo
from tests.support.token_numbers import TokenNumbers, gradient, random_numbers, token_numbers

PPO = Ppo(
    gamma=0.99,
    lam=0.95,
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
    value_clip=0.2,
    kl_estimator="k3",
    kl_placement="reward",
    whiten_advantages=True,
)
IN_LOSS = replace(PPO, kl_placement="loss")


def credit(ppo: Ppo, batch: TokenNumbers, beta: float = 0.1) -> tuple[Tensor, Tensor]:
    """Advantages and returns, from scores to the end."""
    rewards_BT, _ = ppo.token_rewards(
        batch.scores_B,
        batch.logprobs_BT,
        ref_logprobs_BT=batch.ref_logprobs_BT,
        mask_BT=batch.mask_BT,
        beta=beta,
    )
    return ppo.advantages(rewards_BT, batch.values_BT, mask_BT=batch.mask_BT)


def policy_gradient(ppo: Ppo, batch: TokenNumbers, beta: float, *, with_reference: bool = True) -> Tensor:
    logprobs_BT = batch.logprobs_BT.clone().requires_grad_()
    outcome = ppo.policy_loss(
        logprobs_BT,
        batch.old_logprobs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        denominator=batch.count,
        ref_logprobs_BT=batch.ref_logprobs_BT if with_reference else None,
        beta=beta,
    )
    return gradient(outcome.loss, logprobs_BT)


def test_rewards_hold_the_score_and_the_kl_where_that_is_its_place() -> None:
    arguments = {
        "ref_logprobs_BT": torch.tensor([[0.0, -2.0, -2.0, 0.0]]),
        "mask_BT": torch.tensor([[False, True, True, False]]),
    }
    scores_B, logprobs_BT = torch.tensor([1.0]), torch.tensor([[0.0, -1.0, -4.0, 0.0]])
    k1_in_reward = replace(PPO, kl_estimator="k1")
    k1_in_loss = replace(IN_LOSS, kl_estimator="k1")
    rewards_BT, kl_BT = k1_in_reward.token_rewards(scores_B, logprobs_BT, **arguments, beta=0.5)
    assert rewards_BT.tolist() == [[0.0, -0.5, 2.0, 0.0]]
    assert kl_BT.tolist() == [[0.0, 1.0, -2.0, 0.0]]
    rewards_BT, kl_BT = k1_in_loss.token_rewards(scores_B, logprobs_BT, **arguments, beta=0.5)
    assert rewards_BT.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    assert kl_BT.tolist() == [[0.0, 1.0, -2.0, 0.0]]


def test_logged_kl_is_the_one_recomputed_from_the_logprobs() -> None:
    batch = random_numbers(seed=0, rows=3, length=6)
    _, kl_BT = PPO.token_rewards(
        batch.scores_B,
        batch.logprobs_BT,
        ref_logprobs_BT=batch.ref_logprobs_BT,
        mask_BT=batch.mask_BT,
        beta=0.1,
    )
    again_BT = kl_for_reward(batch.logprobs_BT, batch.ref_logprobs_BT, mask_BT=batch.mask_BT, estimator="k3")
    assert torch.equal(kl_BT, again_BT)
    assert kl_BT.count_nonzero() == batch.mask_BT.sum()


@pytest.mark.parametrize("ppo", [PPO, IN_LOSS])
@given(batch=token_numbers())
def test_beta_0_is_the_run_without_a_reference(ppo: Ppo, batch: TokenNumbers) -> None:
    broken_BT = torch.full_like(batch.ref_logprobs_BT, float("nan"))
    with_reference_BT, _ = ppo.token_rewards(
        batch.scores_B,
        batch.logprobs_BT,
        ref_logprobs_BT=broken_BT,
        mask_BT=batch.mask_BT,
        beta=0.0,
    )
    without_BT, kl_BT = ppo.token_rewards(
        batch.scores_B, batch.logprobs_BT, ref_logprobs_BT=None, mask_BT=batch.mask_BT, beta=0.0
    )
    assert torch.equal(with_reference_BT, without_BT)
    assert kl_BT.count_nonzero() == 0
    broken = replace(batch, ref_logprobs_BT=broken_BT)
    assert torch.equal(
        policy_gradient(ppo, broken, beta=0.0),
        policy_gradient(ppo, batch, beta=0.0, with_reference=False),
    )


def test_a_kl_weight_without_a_reference_is_refused() -> None:
    batch = random_numbers(seed=0, rows=2, length=4)
    with pytest.raises(ValueError, match="reference"):
        PPO.token_rewards(
            batch.scores_B, batch.logprobs_BT, ref_logprobs_BT=None, mask_BT=batch.mask_BT, beta=0.1
        )
    with pytest.raises(ValueError, match="reference"):
        policy_gradient(IN_LOSS, batch, beta=0.1, with_reference=False)


@given(token_numbers())
def test_kl_enters_the_policy_loss_only_where_that_is_its_place(batch: TokenNumbers) -> None:
    without_BT = policy_gradient(PPO, batch, beta=0.0)
    assert torch.equal(policy_gradient(PPO, batch, beta=0.1), without_BT)
    d_BT = batch.logprobs_BT - batch.ref_logprobs_BT
    kl_gradient_BT = torch.where(batch.mask_BT, 0.1 * d_BT / batch.count, 0)
    assert_close(policy_gradient(IN_LOSS, batch, beta=0.1), without_BT + kl_gradient_BT)


def test_only_advantages_are_whitened() -> None:
    batch = random_numbers(seed=0, rows=3, length=6)
    plain_BT, plain_returns_BT = credit(replace(PPO, whiten_advantages=False), batch)
    white_BT, returns_BT = credit(PPO, batch)
    assert_close(white_BT, whiten(plain_BT, batch.mask_BT))
    assert torch.equal(returns_BT, plain_returns_BT)
    assert_close(returns_BT, torch.where(batch.mask_BT, plain_BT + batch.values_BT, 0))


@given(token_numbers())
def test_padding_content_does_not_move_advantages(batch: TokenNumbers) -> None:
    for clean_BT, dirty_BT in zip(credit(PPO, batch), credit(PPO, batch.poisoned()), strict=True):
        assert torch.equal(clean_BT, dirty_BT)


@given(token_numbers())
def test_permuting_a_batch_permutes_whitened_advantages(batch: TokenNumbers) -> None:
    order_B = torch.randperm(len(batch.mask_BT), generator=torch.Generator().manual_seed(0))
    straight_BT, _ = credit(PPO, batch)
    permuted_BT, _ = credit(PPO, batch.rows(order_B))
    assert_close(permuted_BT, straight_BT[order_B])


def test_rows_that_train_nothing_do_not_change_the_others() -> None:
    batch = random_numbers(seed=0, rows=4, length=6)
    mask_BT = batch.mask_BT.clone()
    mask_BT[[1, 3]] = False
    mixed = replace(batch, mask_BT=mask_BT).poisoned()
    kept = mixed.rows(torch.tensor([0, 2]))
    for mixed_BT, kept_BT in zip(credit(PPO, mixed), credit(PPO, kept), strict=True):
        assert torch.equal(mixed_BT[[0, 2]], kept_BT)
        assert mixed_BT[[1, 3]].count_nonzero() == 0


def test_temperature_on_both_sides_leaves_the_first_ratio_at_1() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(2, 5, 11, generator=generator)
    tokens_BT = torch.randint(11, (2, 5), generator=generator)
    mask_BT = torch.tensor([[False, False, True, True, False], [False, True, True, True, True]])
    # The rollout engine reports log_softmax(logits / 0.6) of what it sampled.
    engine_BT = (logits_BTV / 0.6).log_softmax(-1)[:, :-1].gather(-1, tokens_BT[:, 1:, None])
    old_BT = torch.nn.functional.pad(engine_BT.squeeze(-1), (1, 0))
    trainer_BT = token_logprobs(logits_BTV, tokens_BT, temperature=0.6, mask_BT=mask_BT)
    outcome = PPO.policy_loss(
        trainer_BT, old_BT, advantages_BT=torch.ones(2, 5), mask_BT=mask_BT, denominator=6.0
    )
    assert outcome.ratio_max.item() == pytest.approx(1.0, abs=1e-6)
    assert outcome.kl_sum.item() == pytest.approx(0.0, abs=1e-6)
    assert outcome.clipped.item() == 0


def test_a_step_down_the_losses_learns_the_rewarded_token_and_its_value() -> None:
    # One state, two actions; action 0 scores 1 and action 1 scores -1.
    tokens_BT = torch.tensor([[0, 0], [0, 1]])
    mask_BT = torch.tensor([[False, True], [False, True]])
    logits_V = torch.zeros(2, requires_grad=True)
    value = torch.zeros(1, requires_grad=True)

    def logprobs() -> Tensor:
        logits_BTV = logits_V.expand(2, 2, 2)
        return token_logprobs(logits_BTV, tokens_BT, temperature=1.0, mask_BT=mask_BT)

    old_BT, old_values_BT = logprobs().detach(), torch.zeros(2, 2)
    ppo = replace(PPO, whiten_advantages=False)
    rewards_BT, _ = ppo.token_rewards(
        torch.tensor([1.0, -1.0]), old_BT, ref_logprobs_BT=None, mask_BT=mask_BT, beta=0.0
    )
    advantages_BT, returns_BT = ppo.advantages(rewards_BT, old_values_BT, mask_BT=mask_BT)
    policy = ppo.policy_loss(
        logprobs(), old_BT, advantages_BT=advantages_BT, mask_BT=mask_BT, denominator=2.0
    )
    critic = ppo.value_loss(
        value.expand(2, 2),
        old_values_BT,
        returns_BT=returns_BT + 1.0,
        mask_BT=mask_BT,
        denominator=2.0,
    )
    assert gradient(policy.loss, logits_V).tolist() == [-0.5, 0.5]
    assert gradient(critic.loss, value).tolist() == [-1.0]
