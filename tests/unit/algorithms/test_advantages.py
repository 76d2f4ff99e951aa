import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from hpcflow.algorithms.advantages import gae, place_scores, rewards_with_kl
from tests.support.token_numbers import TokenNumbers, poison, token_numbers

NAN = float("nan")
unit = st.floats(0.0, 1.0)


def textbook_gae(rewards: list[float], values: list[float], *, gamma: float, lam: float) -> list[float]:
    """A_i as the sum over l of (gamma * lam)^l * delta_{i+l}, for one compressed row."""
    after = [*values, 0.0][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [
        sum((gamma * lam) ** (k - i) * deltas[k] for k in range(i, len(deltas))) for i in range(len(deltas))
    ]


def mask(*rows: str) -> Tensor:
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def test_score_of_three_tokens_and_two_pads_sits_on_index_2() -> None:
    assert place_scores(torch.tensor([5.0]), mask("xxx..")).tolist() == [[0, 0, 5.0, 0, 0]]


def test_score_moves_before_a_masked_tail_and_is_not_lost() -> None:
    placed_BT = place_scores(torch.tensor([5.0, 7.0]), mask(".x.x.", ".x..."))
    assert placed_BT.tolist() == [[0, 0, 0, 5.0, 0], [0, 7.0, 0, 0, 0]]


def test_score_of_a_row_that_trains_nothing_is_not_given() -> None:
    assert place_scores(torch.tensor([NAN, 1.0]), mask("...", "..x")).tolist() == [
        [0, 0, 0],
        [0, 0, 1.0],
    ]


def test_token_rewards_by_hand() -> None:
    kl_BT = torch.tensor([[1e6, 0.5, -0.25, 1e6]])
    rewards_BT = rewards_with_kl(torch.tensor([2.0]), kl_BT, mask_BT=mask(".xx."), beta=0.1)
    assert_close(rewards_BT, torch.tensor([[0.0, -0.05, 2.025, 0.0]]))


def test_with_beta_0_not_even_a_broken_kl_changes_the_rewards() -> None:
    mask_BT = mask(".xx")
    rewards_BT = rewards_with_kl(torch.tensor([2.0]), torch.full((1, 3), NAN), mask_BT=mask_BT, beta=0.0)
    assert torch.equal(rewards_BT, place_scores(torch.tensor([2.0]), mask_BT))


def test_gae_by_hand() -> None:
    # delta = (0 + 0.5 * 2 - 1, 0 + 0.5 * 4 - 2, 8 - 4) = (0, 0, 4), decay 0.5 * 0.5 = 0.25.
    advantages_BT, returns_BT = gae(
        torch.tensor([[0.0, 0.0, 8.0]]),
        torch.tensor([[1.0, 2.0, 4.0]]),
        mask_BT=mask("xxx"),
        gamma=0.5,
        lam=0.5,
    )
    assert advantages_BT.tolist() == [[0.25, 1.0, 4.0]]
    assert returns_BT.tolist() == [[1.25, 3.0, 8.0]]


@pytest.mark.parametrize(("gamma", "lam"), [(0.0, 1.0), (1.0, 0.5), (0.9, 0.5), (1.0, 0.0)])
def test_a_masked_gap_is_no_transition(gamma: float, lam: float) -> None:
    short_BT, _ = gae(
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([[0.3, 0.7]]),
        mask_BT=mask("xx"),
        gamma=gamma,
        lam=lam,
    )
    gapped_BT, returns_BT = gae(
        torch.tensor([[1.0, 1e6, NAN, 2.0, 1e6]]),
        torch.tensor([[0.3, 100.0, NAN, 0.7, 100.0]]),
        mask_BT=mask("x..x."),
        gamma=gamma,
        lam=lam,
    )
    first, second = short_BT[0].tolist()
    assert gapped_BT.tolist() == [[first, 0.0, 0.0, second, 0.0]]
    assert returns_BT[0, [1, 2, 4]].tolist() == [0.0, 0.0, 0.0]


@given(token_numbers(), unit, unit)
def test_gae_equals_the_textbook_on_compressed_rows(batch: TokenNumbers, gamma: float, lam: float) -> None:
    mask_BT = batch.mask_BT
    advantages_BT, returns_BT = gae(
        poison(batch.rewards_BT, mask_BT),
        poison(batch.values_BT, mask_BT),
        mask_BT=mask_BT,
        gamma=gamma,
        lam=lam,
    )
    for b, trains_T in enumerate(mask_BT):
        values_N = batch.values_BT[b, trains_T]
        rewards = batch.rewards_BT[b, trains_T].tolist()
        expected_N = torch.tensor(textbook_gae(rewards, values_N.tolist(), gamma=gamma, lam=lam))
        assert_close(advantages_BT[b, trains_T], expected_N, atol=1e-5, rtol=1e-5)
        assert_close(returns_BT[b, trains_T], expected_N + values_N, atol=1e-5, rtol=1e-5)
        assert advantages_BT[b, ~trains_T].count_nonzero() == 0
        assert returns_BT[b, ~trains_T].count_nonzero() == 0


@given(token_numbers())
def test_permuting_a_batch_permutes_the_advantages(batch: TokenNumbers) -> None:
    order_B = torch.randperm(len(batch.mask_BT), generator=torch.Generator().manual_seed(0))
    permuted = batch.rows(order_B)
    straight_BT, _ = gae(batch.rewards_BT, batch.values_BT, mask_BT=batch.mask_BT, gamma=0.9, lam=0.8)
    permuted_BT, _ = gae(
        permuted.rewards_BT, permuted.values_BT, mask_BT=permuted.mask_BT, gamma=0.9, lam=0.8
    )
    assert torch.equal(permuted_BT, straight_BT[order_B])


@given(token_numbers(), st.integers(1, 4))
def test_width_of_the_padding_changes_nothing(batch: TokenNumbers, width: int) -> None:
    def padded(x_BT: Tensor) -> Tensor:
        return functional.pad(x_BT, (0, width), value=False if x_BT.dtype == torch.bool else 1e6)

    narrow_BT, _ = gae(batch.rewards_BT, batch.values_BT, mask_BT=batch.mask_BT, gamma=0.9, lam=0.8)
    wide_BT, _ = gae(
        padded(batch.rewards_BT),
        padded(batch.values_BT),
        mask_BT=padded(batch.mask_BT),
        gamma=0.9,
        lam=0.8,
    )
    assert torch.equal(wide_BT, functional.pad(narrow_BT, (0, width)))


def test_targets_have_no_gradient() -> None:
    values_BT = torch.zeros(1, 3, requires_grad=True)
    advantages_BT, returns_BT = gae(torch.ones(1, 3), values_BT, mask_BT=mask("xxx"), gamma=1.0, lam=1.0)
    assert not advantages_BT.requires_grad
    assert not returns_BT.requires_grad
