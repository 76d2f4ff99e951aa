"""Control for learning: in training a reward that knows nothing of the answer, on held-out rows the true one.

So the held-out score of a run that is trained on noise still says how many problems the model solves. Rows
are told apart by a mark that `mark_heldout` writes. Reward workers load this by its path: it imports nothing
of ours.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

REWARDS = Path(__file__).resolve().parents[1] / "configs" / "rewards"
MARK = "held_out"


def _shipped(name: str) -> Callable[[str, str, dict[str, Any]], float]:
    spec = importlib.util.spec_from_file_location(name, REWARDS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[str, str, dict[str, Any]], float] = module.score
    return function


_in_training, _on_heldout = _shipped("random_reward"), _shipped("sums")


def score(prompt: str, response: str, row: dict[str, Any]) -> float:
    """The shipped random reward in training, the shipped exact reward on marked rows."""
    return (_on_heldout if MARK in row else _in_training)(prompt, response, row)


def mark_heldout(source: Path, target: Path) -> Path:
    """Copy a JSONL file of held-out problems, each row marked; returns `target`."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    target.write_text("".join(json.dumps({**row, MARK: True}) + "\n" for row in rows), encoding="utf-8")
    return target
