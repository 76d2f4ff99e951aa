import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hpcflow.algorithms.losses import (
    Clip,
    PolicyLoss,
    ValueLoss,
    clipped_policy_loss,
    clipped_value_loss,
    kl_loss,
)
from tests.support.token_numbers import TokenNumbers, gradient, random_numbers, token_numbers

CLIP = Clip(low=0.2, high=0.28)
Outcome = tuple[PolicyLoss | ValueLoss, Tensor]


def policy_outcome(batch: TokenNumbers, denominator: float, clip: Clip = CLIP) -> Outcome:
    """The policy loss and its gradient with respect to the log-probabilities."""
    logprobs_BT = batch.logprobs_BT.clone().requires_grad_()
    outcome = clipped_policy_loss(
        logprobs_BT,
        batch.old_logprobs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        denominator=denominator,
        clip=clip,
    )
    return outcome, gradient(outcome.loss, logprobs_BT)


def value_outcome(batch: TokenNumbers, denominator: float) -> Outcome:
    """The value loss and its gradient with respect to the values."""
    values_BT = batch.values_BT.clone().requires_grad_()
    outcome = clipped_value_loss(
        values_BT,
        batch.old_values_BT,
        returns_BT=batch.returns_BT,
        mask_BT=batch.mask_BT,
        denominator=denominator,
        clip=0.2,
    )
    return outcome, gradient(outcome.loss, values_BT)


def one_token_loss(ratio: float, advantage: float, clip: Clip) -> tuple[float, float, int]:
    """Loss, gradient with respect to the ratio, and clip count of a single token."""
    logprob = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    outcome = clipped_policy_loss(
        logprob,
        torch.zeros(1, 1, dtype=torch.float64),
        advantages_BT=torch.tensor([[advantage]], dtype=torch.float64),
        mask_BT=torch.tensor([[True]]),
        denominator=1.0,
        clip=clip,
    )
    slope = gradient(outcome.loss, logprob).item() / ratio
    return outcome.loss.item(), slope, int(outcome.clipped)


both_losses = pytest.mark.parametrize("outcome_of", [policy_outcome, value_outcome])
OutcomeOf = Callable[[TokenNumbers, float], Outcome]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0),
        (1.25, 2.0, -2.5, -2.0, 0),
        (1.5, 2.0, -2.56, 0.0, 1),
        (0.5, 2.0, -1.0, -2.0, 0),
        (1.0, -2.0, 2.0, 2.0, 0),
        (0.5, -2.0, 1.6, 0.0, 1),
        (1.5, -2.0, 3.0, 2.0, 0),
        (9.0, -2.0, 18.0, 2.0, 0),
        (9.0, 0.0, 0.0, 0.0, 0),
    ],
)
def test_policy_loss_by_hand(ratio: float, advantage: float, loss: float, slope: float, clipped: int) -> None:
    expected = pytest.approx((loss, slope, clipped))
    assert one_token_loss(ratio, advantage, CLIP) == expected


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.0, 1.1, 2.9, 3.1, 50.0])
@pytest.mark.parametrize("advantage", [-2.0, -0.5, 0.0, 0.5, 2.0])
def test_dual_clip_touches_only_negative_advantages(ratio: float, advantage: float) -> None:
    plain = one_token_loss(ratio, advantage, CLIP)
    dual = one_token_loss(ratio, advantage, Clip(low=0.2, high=0.28, dual=3.0))
    if advantage < 0 and ratio > 3.0:
        assert dual == pytest.approx((-3.0 * advantage, 0.0, 1))
    else:
        assert dual == plain


@given(token_numbers(), st.sampled_from([None, 3.0]))
def test_first_update_on_fresh_samples_has_ratio_exactly_1(batch: TokenNumbers, dual: float | None) -> None:
    outcome = clipped_policy_loss(
        batch.old_logprobs_BT,
        batch.old_logprobs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        denominator=batch.count,
        clip=Clip(low=0.2, high=0.2, dual=dual),
    )
    assert outcome.ratio_max.item() == (1.0 if batch.mask_BT.any() else 0.0)
    assert outcome.kl_sum.item() == 0.0
    assert outcome.clipped.item() == 0
    expected = -batch.advantages_BT[batch.mask_BT].sum()
    assert_close(outcome.loss_sum, expected, atol=1e-5, rtol=1e-5)


def test_metrics_by_hand() -> None:
    outcome = clipped_policy_loss(
        torch.tensor([[-9.0, -1.0, -2.0, -9.0]]),
        torch.tensor([[-1.0, -2.0, -1.5, -30.0]]),
        advantages_BT=torch.tensor([[1.0, 1.0, 1.0, 1.0]]),
        mask_BT=torch.tensor([[False, True, True, False]]),
        denominator=4.0,
        clip=Clip(low=0.2, high=0.2),
    )
    assert outcome.tokens.item() == 2
    assert outcome.clipped.item() == 1
    assert outcome.ratio_max.item() == pytest.approx(math.e)
    # k3 of KL(old, new), at ratios e and exp(-1/2): ratio - 1 - log(ratio).
    assert outcome.kl_sum.item() == pytest.approx(math.e - 2 + math.exp(-0.5) - 0.5)
    assert outcome.loss_sum.item() == pytest.approx(-1.2 - math.exp(-0.5))
    assert outcome.loss.item() == pytest.approx((-1.2 - math.exp(-0.5)) / 4)
    assert not any(x.requires_grad for x in (outcome.loss_sum, outcome.kl_sum, outcome.ratio_max))


@pytest.mark.parametrize("drift", [25.0, -25.0, float("-inf")])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_the_clamp_is_finite_and_has_no_gradient(drift: float, advantage: float) -> None:
    logprobs_BT = torch.tensor([[drift, 0.0]], requires_grad=True)
    outcome = clipped_policy_loss(
        logprobs_BT,
        torch.zeros(1, 2),
        advantages_BT=torch.full((1, 2), advantage),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        denominator=1.0,
        clip=CLIP,
    )
    assert outcome.loss.isfinite()
    assert outcome.kl_sum.isfinite()
    assert gradient(outcome.loss, logprobs_BT).tolist() == [[0.0, -advantage]]


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope", "clipped"),
    [
        # The value of rollout time is 1 and the clip 0.5: values in 0.5 .. 1.5 are free.
        (1.2, 2.0, 0.5 * 0.8**2, -0.8, 0),
        (1.8, 2.0, 0.5 * 0.5**2, 0.0, 1),
        (1.8, 0.0, 0.5 * 1.8**2, 1.8, 0),
        (0.1, 0.0, 0.5 * 0.5**2, 0.0, 1),
    ],
)
def test_value_loss_by_hand(value: float, target: float, loss: float, slope: float, clipped: int) -> None:
    values_BT = torch.tensor([[value]], requires_grad=True)
    outcome = clipped_value_loss(
        values_BT,
        torch.tensor([[1.0]]),
        returns_BT=torch.tensor([[target]]),
        mask_BT=torch.tensor([[True]]),
        denominator=1.0,
        clip=0.5,
    )
    assert outcome.loss.item() == pytest.approx(loss)
    assert gradient(outcome.loss, values_BT).item() == pytest.approx(slope)
    assert outcome.clipped.item() == clipped


def test_value_loss_without_clip_is_half_the_squared_error() -> None:
    outcome = clipped_value_loss(
        torch.tensor([[9.0, 4.0]]),
        torch.zeros(1, 2),
        returns_BT=torch.tensor([[1.0, 1.0]]),
        mask_BT=torch.tensor([[False, True]]),
        denominator=2.0,
        clip=None,
    )
    assert outcome.loss_sum.item() == 4.5
    assert outcome.loss.item() == 2.25
    assert outcome.clipped.item() == 0


@both_losses
@given(batch=token_numbers())
def test_masked_content_reaches_neither_loss_nor_gradient(outcome_of: OutcomeOf, batch: TokenNumbers) -> None:
    clean, clean_grad_BT = outcome_of(batch, batch.count)
    dirty, dirty_grad_BT = outcome_of(batch.poisoned(), batch.count)
    assert vars(dirty) == vars(clean)
    assert torch.equal(dirty_grad_BT, clean_grad_BT)
    assert clean_grad_BT[~batch.mask_BT].count_nonzero() == 0
    assert clean_grad_BT.isfinite().all()


@both_losses
@given(batch=token_numbers())
def test_one_row_at_a_time_gives_the_gradient_of_the_whole_batch(
    outcome_of: OutcomeOf, batch: TokenNumbers
) -> None:
    whole, whole_grad_BT = outcome_of(batch, batch.count)
    parts = [outcome_of(batch.rows(slice(b, b + 1)), batch.count) for b in range(len(whole_grad_BT))]
    assert_close(torch.cat([grad_BT for _, grad_BT in parts]), whole_grad_BT)
    for name in ("loss", "loss_sum", "tokens", "clipped"):
        total = sum(vars(part)[name] for part, _ in parts)
        assert_close(total, vars(whole)[name], atol=1e-5, rtol=1e-5)


@both_losses
def test_two_ranks_that_average_give_the_gradient_of_one(outcome_of: OutcomeOf) -> None:
    mask_BT = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 0, 0]]).bool()
    batch = replace(random_numbers(seed=3, rows=4, length=4), mask_BT=mask_BT)
    _, single_BT = outcome_of(batch, 5.0)
    ranks = [batch.rows(slice(0, 2)), batch.rows(slice(2, 4))]
    assert [rank.mask_BT.sum().item() for rank in ranks] == [1, 4]
    averaged_BT = torch.cat([outcome_of(rank, 5.0 / 2)[1] / 2 for rank in ranks])
    assert_close(averaged_BT, single_BT)


@both_losses
def test_a_rank_that_trains_nothing_returns_a_zero_attached_to_the_graph(
    outcome_of: OutcomeOf,
) -> None:
    batch = random_numbers(seed=3, rows=2, length=3)
    nothing = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
    outcome, grad_BT = outcome_of(nothing.poisoned(), 7.0)
    assert outcome.loss.item() == 0.0
    assert outcome.tokens.item() == 0
    assert grad_BT.count_nonzero() == 0


@both_losses
@pytest.mark.parametrize("denominator", [0.0, -1.0, float("nan")])
def test_a_denominator_that_is_no_count_is_refused(outcome_of: OutcomeOf, denominator: float) -> None:
    with pytest.raises(ValueError, match="denominator"):
        outcome_of(random_numbers(seed=3, rows=2, length=3), denominator)


def test_kl_loss_is_the_sum_of_estimates_over_the_denominator() -> None:
    logprobs_BT = torch.tensor([[float("nan"), -1.0, -4.0]], requires_grad=True)
    outcome = kl_loss(
        logprobs_BT,
        torch.tensor([[0.0, -2.0, -2.0]]),
        mask_BT=torch.tensor([[False, True, True]]),
        denominator=4.0,
        estimator="k2",
    )
    assert outcome.loss_sum.item() == 2.5
    assert outcome.loss.item() == 0.625
    assert gradient(outcome.loss, logprobs_BT).tolist() == [[0.0, 0.25, -0.5]]
