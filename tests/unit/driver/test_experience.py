"""From samples to right-padded rows: what trains is what was sampled, nothing else."""

from __future__ import annotations

from hpcflow.driver.experience import rollout_logprobs, token_batch, without_rows
from hpcflow.driver.groups import deal, deal_rows
from hpcflow.driver.prompts import Prompt
from hpcflow.roles.contract import Sample

EOS = PAD = 0


def prompt(*ids: int) -> Prompt:
    return Prompt(id=0, token_ids=ids, text="", row={})


def sample(*tokens: int, finish: str = "stop") -> Sample:
    logprobs = [-0.5 - index for index in range(len(tokens))]
    return Sample(list(tokens), logprobs, finish, version=0)


def test_a_sampled_end_of_text_trains_even_where_padding_has_the_same_id() -> None:
    batch = token_batch([prompt(5, 6), prompt(7)], [sample(8, EOS), sample(9, 9, 9)])
    assert batch.tokens.tolist() == [[5, 6, 8, EOS], [7, 9, 9, 9]]
    assert batch.mask.tolist() == [[False, False, True, True], [False, True, True, True]]
    assert batch.lengths.tolist() == [4, 4]


def test_a_response_cut_by_length_counts_its_own_tokens_only() -> None:
    batch = token_batch([prompt(5), prompt(5)], [sample(8, finish="length"), sample(1, 2, 3)])
    assert batch.mask.sum(axis=1).tolist() == [1, 3]
    assert batch.lengths.tolist() == [2, 4]


def test_a_sample_the_engine_gave_up_on_trains_nothing() -> None:
    batch = token_batch([prompt(5), prompt(5)], [sample(8, 8, finish="abort"), sample(1)])
    assert batch.mask.sum(axis=1).tolist() == [0, 1]


def test_an_empty_response_is_a_row_without_trainable_tokens() -> None:
    batch = token_batch([prompt(5, 6)], [sample()])
    assert batch.mask.sum() == 0
    assert batch.lengths.tolist() == [2]


def test_rollout_logprobs_sit_on_the_tokens_they_are_about() -> None:
    prompts, samples = [prompt(5, 6), prompt(7)], [sample(8), sample(9, 9)]
    result = rollout_logprobs(prompts, samples, 3)
    assert result.tolist() == [[0.0, 0.0, -0.5], [0.0, -0.5, -1.5]]


def test_faulty_rows_lose_their_mask_and_keep_their_place() -> None:
    batch = token_batch([prompt(5), prompt(6)], [sample(1), sample(2)])
    cleared = without_rows(batch, [0])
    assert cleared.mask.sum(axis=1).tolist() == [0, 1]
    assert cleared.tokens.tolist() == batch.tokens.tolist()
    assert batch.mask.sum() == 2


def test_dealing_keeps_order_and_uses_every_item_once() -> None:
    for world_size in (1, 2, 3, 5):
        parts = deal(range(7), world_size)
        assert len(parts) == world_size
        assert [item for part in parts for item in part] == list(range(7))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_dealt_rows_put_together_are_the_batch() -> None:
    batch = token_batch([prompt(i) for i in range(1, 6)], [sample(i) for i in range(1, 6)])
    parts = deal_rows(batch, 2)
    assert [row for part in parts for row in part.tokens.tolist()] == batch.tokens.tolist()
