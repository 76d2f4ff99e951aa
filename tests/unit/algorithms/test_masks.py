import math

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from hpcflow.algorithms.masks import (
    last_trainable,
    masked_mean,
    masked_sum,
    select,
    token_logprobs,
    values_before_tokens,
    whiten,
)
from tests.support.token_numbers import TokenNumbers, gradient, poison, token_numbers

NAN, INF = float("nan"), float("inf")


def test_masked_values_reach_neither_sum_nor_gradient() -> None:
    x_BT = torch.tensor([[1.0, NAN, 3.0, INF]], requires_grad=True)
    mask_BT = torch.tensor([[True, False, True, False]])
    total = masked_sum(x_BT, mask_BT)
    assert total.item() == 4.0
    assert gradient(total, x_BT).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert masked_mean(x_BT, mask_BT).item() == 2.0


def test_mean_of_no_tokens_is_a_zero_attached_to_the_graph() -> None:
    x_BT = torch.tensor([[NAN, 2.0]], requires_grad=True)
    mean = masked_mean(x_BT, torch.zeros(1, 2, dtype=torch.bool))
    assert mean.item() == 0.0
    assert gradient(mean, x_BT).tolist() == [[0.0, 0.0]]


def test_whitening_uses_the_biased_variance_of_all_trainable_tokens() -> None:
    x_BT = torch.tensor([[1.0, 2.0, 999.0], [3.0, 4.0, NAN]])
    mask_BT = torch.tensor([[True, True, False], [True, True, False]])
    scale = math.sqrt(1.25)
    expected = torch.tensor([[-1.5, -0.5, 0.0], [0.5, 1.5, 0.0]]) / scale
    assert_close(whiten(x_BT, mask_BT), expected)


@given(token_numbers())
def test_whitened_tokens_have_mean_0_and_variance_1(batch: TokenNumbers) -> None:
    white_BT = whiten(poison(batch.values_BT, batch.mask_BT), batch.mask_BT)
    assert torch.equal(white_BT, whiten(batch.values_BT, batch.mask_BT))
    white_N = white_BT[batch.mask_BT]
    if len(white_N) >= 2:
        assert_close(white_N.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
        assert_close(white_N.var(correction=0), torch.tensor(1.0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_whitening_does_not_depend_on_how_tokens_are_laid_out_in_rows(rows: int) -> None:
    x_N = torch.randn(64, generator=torch.Generator().manual_seed(0))
    mask_N = torch.arange(64) % 3 != 0
    expected_N = whiten(x_N[None], mask_N[None])[0]
    # 8 rows of 8: batch size and length are equal, and nothing may depend on that.
    white_BT = whiten(x_N.reshape(rows, -1), mask_N.reshape(rows, -1))
    assert torch.equal(white_BT.flatten(), expected_N)


@pytest.mark.parametrize("trainable", [0, 1])
def test_fewer_than_two_trainable_tokens_stay_as_they_are(trainable: int) -> None:
    mask_BT = torch.tensor([[trainable == 1, False]])
    assert whiten(torch.tensor([[7.0, NAN]]), mask_BT).tolist() == [[7.0 * trainable, 0.0]]


def test_equal_numbers_whiten_to_exactly_zero() -> None:
    x_BT = torch.full((7, 143), 0.1)
    assert whiten(x_BT, torch.ones(7, 143, dtype=torch.bool)).count_nonzero() == 0


def test_last_trainable_token_of_each_row() -> None:
    mask_BT = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    expected = [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert last_trainable(mask_BT.bool()).int().tolist() == expected


def test_logprobs_belong_to_the_token_they_are_about() -> None:
    # p(. | token 0) = (1/2, 1/4, 1/4) and p(. | tokens 0, 1) = (1/10, 1/10, 8/10).
    logits_BTV = torch.tensor([[[2.0, 1.0, 1.0], [1.0, 1.0, 8.0], [9.0, 9.0, 9.0]]]).log()
    logprobs_BT = token_logprobs(logits_BTV, torch.tensor([[0, 1, 2]]), temperature=1.0)
    assert_close(logprobs_BT, torch.tensor([[0.0, math.log(0.25), math.log(0.8)]]))


def test_temperature_divides_the_logits() -> None:
    logits_BTV = torch.tensor([[[3.0, 0.0], [0.0, 0.0]]])
    logprobs_BT = token_logprobs(logits_BTV, torch.tensor([[0, 1]]), temperature=0.6)
    assert_close(logprobs_BT[0, 1].item(), -math.log(1 + math.exp(5.0)), rtol=1e-6, atol=0)


@given(token_numbers())
def test_masked_logprobs_are_those_of_the_whole_batch(batch: TokenNumbers) -> None:
    rows, length = batch.mask_BT.shape
    logits_BTV = torch.randn(rows, length, 5, generator=torch.Generator().manual_seed(1))
    tokens_BT = torch.arange(rows * length).reshape(rows, length) % 5
    whole_BT = token_logprobs(logits_BTV, tokens_BT, temperature=0.7)
    masked_BT = token_logprobs(logits_BTV, tokens_BT, temperature=0.7, mask_BT=batch.mask_BT)
    assert_close(masked_BT, select(whole_BT, batch.mask_BT))


def test_unused_logits_and_pad_ids_reach_neither_logprobs_nor_gradient() -> None:
    logits_BTV = torch.tensor([[[0.0, 1.0], [NAN, INF], [-INF, NAN]]], requires_grad=True)
    mask_BT = torch.tensor([[False, True, False]])
    tokens_BT = torch.tensor([[0, 1, -100]])
    logprobs_BT = token_logprobs(logits_BTV, tokens_BT, temperature=1.0, mask_BT=mask_BT)
    gradient_BTV = gradient(logprobs_BT.sum(), logits_BTV)
    expected = -math.log(1 + math.exp(-1.0))
    assert_close(logprobs_BT.detach(), torch.tensor([[0.0, expected, 0.0]]))
    assert gradient_BTV.isfinite().all()
    assert gradient_BTV[0, 0].count_nonzero() == 2
    assert gradient_BTV[0, 1:].count_nonzero() == 0


def test_logprobs_of_no_token_are_attached_to_the_graph() -> None:
    logits_BTV = torch.zeros(2, 3, 4, requires_grad=True)
    nothing_BT = torch.zeros(2, 3, dtype=torch.bool)
    tokens_BT = torch.zeros(2, 3, dtype=torch.int64)
    logprobs_BT = token_logprobs(logits_BTV, tokens_BT, temperature=1.0, mask_BT=nothing_BT)
    assert gradient(logprobs_BT.sum(), logits_BTV).count_nonzero() == 0


def test_logprobs_of_half_precision_logits_are_computed_in_float32() -> None:
    logits_BTV = torch.randn(1, 3, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    tokens_BT = torch.tensor([[1, 2, 3]])
    logprobs_BT = token_logprobs(logits_BTV, tokens_BT, temperature=1.0)
    assert logprobs_BT.dtype == torch.float32
    assert_close(logprobs_BT, token_logprobs(logits_BTV.float(), tokens_BT, temperature=1.0))


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.zeros(1, 2, 3), torch.tensor([[0, 1]]), temperature=temperature)


def test_value_of_a_state_is_read_before_its_token() -> None:
    head_BT = torch.tensor([[10.0, 20.0, 30.0], [1.0, 2.0, NAN]])
    assert values_before_tokens(head_BT).tolist() == [[0.0, 10.0, 20.0], [0.0, 1.0, 2.0]]
