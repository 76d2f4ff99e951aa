import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from hpcflow.algorithms.kl import (
    AdaptiveKl,
    FixedKl,
    KlEstimator,
    Limits,
    kl_for_loss,
    kl_for_reward,
)
from tests.support.token_numbers import TokenNumbers, gradient, poison, token_numbers

ESTIMATORS: tuple[KlEstimator, ...] = get_args(KlEstimator)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def everywhere(x_BT: Tensor) -> Tensor:
    return torch.ones_like(x_BT, dtype=torch.bool)


@pytest.mark.parametrize(
    ("estimator", "at_plus_1", "at_minus_2"),
    [
        ("k1", 1.0, -2.0),
        ("abs", 1.0, 2.0),
        ("k2", 0.5, 2.0),
        ("k3", math.exp(-1.0), math.exp(2.0) - 3.0),
    ],
)
def test_estimates_by_hand(estimator: KlEstimator, at_plus_1: float, at_minus_2: float) -> None:
    policy_BT, ref_BT = torch.tensor([[-1.0, -3.0, -2.0]]), torch.tensor([[-2.0, -1.0, -2.0]])
    expected_BT = torch.tensor([[at_plus_1, at_minus_2, 0.0]])
    mask_BT = everywhere(policy_BT)
    for use in (kl_for_reward, kl_for_loss):
        assert_close(use(policy_BT, ref_BT, mask_BT=mask_BT, estimator=estimator), expected_BT)


@every_estimator
def test_the_estimate_in_a_reward_has_no_gradient(estimator: KlEstimator) -> None:
    policy_BT = torch.tensor([[-1.0]], requires_grad=True)
    kl_BT = kl_for_reward(
        policy_BT, torch.tensor([[-2.0]]), mask_BT=everywhere(policy_BT), estimator=estimator
    )
    assert not kl_BT.requires_grad


@every_estimator
def test_expected_gradient_is_that_of_the_exact_kl(estimator: KlEstimator) -> None:
    logits_V = torch.tensor([0.3, -0.9, 1.1], dtype=torch.float64, requires_grad=True)
    ref_V = torch.tensor([0.8, 0.1, -0.4], dtype=torch.float64).log_softmax(0)
    policy_V = logits_V.log_softmax(0)
    exact_kl = (policy_V.exp() * (policy_V - ref_V)).sum()
    exact_V = gradient(exact_kl, logits_V)
    policy_V = logits_V.log_softmax(0)
    kl_V = kl_for_loss(policy_V, ref_V, mask_BT=everywhere(ref_V), estimator=estimator)
    expected_V = gradient((policy_V.detach().exp() * kl_V).sum(), logits_V)
    assert exact_V.abs().min() > 0.01
    assert_close(expected_V, exact_V)


@every_estimator
@pytest.mark.parametrize("d", [25.0, -25.0, float("-inf")])
def test_a_token_beyond_the_clamps_is_bounded_and_has_no_gradient(estimator: KlEstimator, d: float) -> None:
    policy_BT = torch.tensor([[d, 0.5]], requires_grad=True)
    kl_BT = kl_for_loss(policy_BT, torch.zeros(1, 2), mask_BT=everywhere(policy_BT), estimator=estimator)
    assert gradient(kl_BT.sum(), policy_BT).tolist() == [[0.0, 0.5]]
    assert kl_BT[0, 0].abs().item() == 10.0


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 6.0), ("k2", 0.0)])
def test_limit_of_the_value_is_that_of_the_estimator_in_use(estimator: KlEstimator, expected: float) -> None:
    # d = 6: k1 is 6, within 10; k2 is 18, beyond it.
    policy_BT = torch.tensor([[6.0]], requires_grad=True)
    kl_BT = kl_for_loss(policy_BT, torch.zeros(1, 1), mask_BT=everywhere(policy_BT), estimator=estimator)
    assert gradient(kl_BT.sum(), policy_BT).item() == expected


def test_limits_are_configurable() -> None:
    policy_BT, ref_BT = torch.tensor([[3.0, -3.0]]), torch.zeros(1, 2)
    mask_BT = everywhere(policy_BT)
    value = kl_for_reward(policy_BT, ref_BT, mask_BT=mask_BT, estimator="k1", limits=Limits(value=2.0))
    exponent = kl_for_reward(policy_BT, ref_BT, mask_BT=mask_BT, estimator="k3", limits=Limits(exponent=1.0))
    assert value.tolist() == [[2.0, -2.0]]
    assert_close(exponent, torch.tensor([[math.exp(-1.0), math.exp(1.0) - 2.0]]))


@every_estimator
@given(batch=token_numbers())
def test_masked_content_reaches_neither_estimate_nor_gradient(
    estimator: KlEstimator, batch: TokenNumbers
) -> None:
    mask_BT = batch.mask_BT
    clean_BT = kl_for_reward(batch.logprobs_BT, batch.ref_logprobs_BT, mask_BT=mask_BT, estimator=estimator)
    policy_BT = poison(batch.logprobs_BT, mask_BT).requires_grad_()
    kl_BT = kl_for_loss(
        policy_BT, poison(batch.ref_logprobs_BT, mask_BT), mask_BT=mask_BT, estimator=estimator
    )
    gradient_BT = gradient(kl_BT.sum(), policy_BT)
    assert torch.equal(kl_BT.detach(), clean_BT)
    assert kl_BT[~mask_BT].count_nonzero() == 0
    assert gradient_BT.isfinite().all()
    assert gradient_BT[~mask_BT].count_nonzero() == 0
    assert gradient_BT[mask_BT].count_nonzero() == mask_BT.sum()


def test_no_gradient_reaches_the_reference() -> None:
    policy_BT = torch.tensor([[-1.0]], requires_grad=True)
    ref_BT = torch.tensor([[-2.0]], requires_grad=True)
    kl_BT = kl_for_loss(policy_BT, ref_BT, mask_BT=everywhere(ref_BT), estimator="k3")
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        gradient(kl_BT.sum(), ref_BT)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(6.0, 1.0), (6.6, 1.01), (5.4, 0.99), (600.0, 1.02), (0.0, 0.98), (-5.0, 0.98)],
)
def test_adaptive_weight_follows_the_formula(kl: float, factor: float) -> None:
    controller = AdaptiveKl(beta=0.2, target=6.0, horizon=10_000)
    assert controller.updated(kl, n=1_000).beta == pytest.approx(0.2 * factor)


def test_adaptive_weight_stays_positive_when_a_step_exceeds_the_horizon() -> None:
    controller = AdaptiveKl(beta=0.2, target=6.0, horizon=10)
    assert controller.updated(0.0, n=1_000).beta == pytest.approx(0.16)


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_adaptive_weight_refuses_a_kl_that_is_not_finite(kl: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        AdaptiveKl(beta=0.2, target=6.0, horizon=10).updated(kl, n=1)


def test_restored_controller_continues_as_the_uninterrupted_one() -> None:
    fresh = AdaptiveKl(beta=0.2, target=6.0, horizon=100)
    before = fresh.updated(9.0, n=10).updated(1.0, n=10)
    restored = fresh.load(before.state())
    assert restored.updated(7.0, n=10) == before.updated(7.0, n=10)
    assert restored.beta != fresh.beta


def test_fixed_weight_never_changes() -> None:
    controller = FixedKl(beta=0.05)
    assert controller.updated(1e9, n=1_000).load(controller.state()).beta == 0.05
