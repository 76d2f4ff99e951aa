"""The shipped reward functions: one that knows the answer, one that must not."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

REWARDS = Path(__file__).parents[3] / "configs" / "rewards"


def load(name: str) -> Callable[..., float]:
    spec = importlib.util.spec_from_file_location(name, REWARDS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    score: Callable[..., float] = module.score
    return score


@pytest.mark.parametrize(
    ("response", "reward"), [("42", 1.0), (" 42\n", 1.0), ("43", 0.0), ("", 0.0), ("421", 0.0), ("4 2", 0.0)]
)
def test_only_the_exact_answer_is_rewarded(response: str, reward: float) -> None:
    assert load("sums")("17+25=", response, {"prompt": "17+25=", "answer": "42"}) == reward


def test_a_row_without_answer_is_refused() -> None:
    with pytest.raises(KeyError, match="answer"):
        load("sums")("17+25=", "42", {"prompt": "17+25="})


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("15 + 27 = 42", 1.0),
        ("It is 42.", 1.0),
        ("42, or 43", 0.0),
        ("142", 0.0),
        ("forty-two", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_number_of_a_sentence_is_its_answer(response: str, reward: float) -> None:
    assert load("number")("15 + 27 = ?", response, {"answer": "42"}) == reward


def test_the_random_reward_is_steady_per_sample_and_blind_to_the_answer() -> None:
    score = load("random_reward")
    prompts = [f"{a}+{b}=" for a in range(10, 50) for b in range(10, 50)]
    right = [score(p, str(sum(map(int, re.findall(r"\d+", p)))), {}) for p in prompts]
    wrong = [score(p, "99", {}) for p in prompts]
    assert right == [score(p, str(sum(map(int, re.findall(r"\d+", p)))), {"answer": "x"}) for p in prompts]
    assert sum(right) / len(right) == pytest.approx(0.5, abs=0.05)
    assert sum(wrong) / len(wrong) == pytest.approx(0.5, abs=0.05)
