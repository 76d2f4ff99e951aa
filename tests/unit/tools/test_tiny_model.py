"""The demo's model: its tokenizer, what is trained on, and how it is judged."""

from pathlib import Path

import pytest
import tiny_model
import torch
from demo_tasks import Problem, sums
from tiny_reward_model import auc
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_model.make_tokenizer()


def test_text_survives_the_tokenizer_one_token_a_character(tokenizer: PreTrainedTokenizerFast) -> None:
    text = 'a "b"\n17+25= ~'
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_pad_eos_and_unknown_are_distinct_and_inside_the_vocabulary(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer("\u00e9").input_ids[0]}
    assert len(special) == 3
    assert max(special) < tiny_model.model_config(tokenizer).vocab_size == len(tokenizer)


def test_the_chat_template_leaves_a_prompt_as_it_is(tokenizer: PreTrainedTokenizerFast) -> None:
    turn = [{"role": "user", "content": "17+25="}]
    assert tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) == "17+25="


def test_answer_and_eos_are_trained_and_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    problems = [Problem("17+25=", "42"), Problem("10+10=", "2")]
    tokens_BT, answer_BT = tiny_model.encode(tokenizer, problems)
    assert tokenizer.decode(tokens_BT[0][answer_BT[0]]) == "42<eos>"
    assert tokenizer.decode(tokens_BT[1][answer_BT[1]]) == "2<eos>"
    assert tokens_BT[1, -1] == tokenizer.pad_token_id


def test_accuracy_is_the_probability_of_the_right_answer_and_the_greedy_hit(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_model.model_config(tokenizer))
    problem = Problem("17+25=", "42")
    ids, expected = tokenizer(problem.prompt).input_ids, 1.0
    for token in [*tokenizer(problem.answer).input_ids, tokenizer.eos_token_id]:
        with torch.no_grad():
            expected *= float(model(input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1)[token])
        ids = [*ids, token]
    sampled, greedy = tiny_model.accuracy(model, tokenizer, [problem, Problem("10+10=", "2")])
    alone, _ = tiny_model.accuracy(model, tokenizer, [problem])
    assert alone == pytest.approx(expected, rel=1e-4)
    assert greedy == 0.0
    assert 0.0 < sampled < 1e-3


def test_a_warm_up_that_misses_its_goal_says_so(tmp_path: Path) -> None:
    plan = tiny_model.WarmUp(goal=0.99, batch=8, max_steps=5, judged=8)
    with pytest.raises(RuntimeError, match="goal is 99%"):
        tiny_model.make_policy(sums(seed=0), tmp_path, seed=0, plan=plan, say=lambda _: None)
    assert not list(tmp_path.iterdir())


def test_auc_counts_ordered_pairs_and_halves_ties() -> None:
    scores = torch.tensor([2.0, 1.0, 1.0, 0.0])
    right = torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert auc(scores, right) == pytest.approx((2 + 1.5) / 4)
