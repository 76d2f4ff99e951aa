"""The demo's problems: right answers, and a held-out part that training never sees in any form."""

import random
import re

from demo_tasks import Problem, sums, wrong_answer


def operands(problem: Problem) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\+(\d+)=", problem.prompt)
    assert match is not None
    return int(match[1]), int(match[2])


def test_every_answer_is_the_sum_of_its_prompt() -> None:
    split = sums(seed=0)
    for problem in [*split.train, *split.heldout]:
        a, b = operands(problem)
        assert problem.answer == str(a + b)
        assert len(problem.answer) == 2


def test_heldout_problems_never_appear_in_training_in_either_order() -> None:
    split = sums(seed=3)
    trained = {frozenset(operands(problem)) for problem in split.train}
    assert not trained & {frozenset(operands(problem)) for problem in split.heldout}


def test_all_problems_are_used_once() -> None:
    split = sums(seed=0)
    prompts = [problem.prompt for problem in [*split.train, *split.heldout]]
    assert len(prompts) == len(set(prompts)) == 3240


def test_the_split_follows_from_the_seed() -> None:
    assert sums(seed=1) == sums(seed=1)
    assert set(sums(seed=1).heldout) != set(sums(seed=2).heldout)


def test_wrong_answers_are_never_right_and_mostly_have_the_right_form() -> None:
    rng = random.Random(0)
    problem = Problem(prompt="17+25=", answer="42")
    answers = [wrong_answer(problem, rng) for _ in range(1000)]
    assert "42" not in answers
    assert 0.75 < sum(len(answer) == 2 for answer in answers) / len(answers) < 0.85
