"""The demo's task: problems with one right answer, split so that the held-out ones are new in every sense.

Pure functions of a seed; never imports torch. Both orders of a sum (17+25 and 25+17) fall on the same side of
the split, so a held-out problem cannot be answered from memory of its mirror image.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A prompt as the model reads it, and the only answer that is right."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Split:
    """Disjoint problems, both lists in random order: to train on (warm-up and PPO), and to judge by."""

    train: list[Problem]
    heldout: list[Problem]


def sums(*, seed: int, heldout_pairs: int = 250) -> Split:
    """All sums of two two-digit numbers below 100; about twice `heldout_pairs` of them are held out."""
    pairs = [(a, b) for a in range(10, 90) for b in range(a, 100 - a)]
    rng = random.Random(seed)
    rng.shuffle(pairs)
    train, heldout = _both_orders(pairs[heldout_pairs:]), _both_orders(pairs[:heldout_pairs])
    rng.shuffle(train)
    rng.shuffle(heldout)
    return Split(train=train, heldout=heldout)


TASKS: dict[str, Callable[..., Split]] = {"sums": sums}


def wrong_answer(problem: Problem, rng: random.Random) -> str:
    """A wrong answer: mostly a near miss of the right form, sometimes a digit too many or too few."""
    right = problem.answer
    kind = rng.random()
    if kind < 0.1:
        return right[:-1]
    if kind < 0.2:
        return right + rng.choice("0123456789")
    if kind < 0.4:
        return str(rng.choice([n for n in range(10, 100) if str(n) != right]))
    place = rng.randrange(len(right))
    digit = rng.choice([d for d in "0123456789" if d != right[place]])
    return right[:place] + digit + right[place + 1 :]


def _both_orders(pairs: list[tuple[int, int]]) -> list[Problem]:
    ordered = {pair for a, b in pairs for pair in ((a, b), (b, a))}
    return [Problem(prompt=f"{a}+{b}=", answer=str(a + b)) for a, b in sorted(ordered)]
