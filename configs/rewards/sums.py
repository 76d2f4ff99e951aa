"""Reward of the demo: 1.0 for the exact answer of the row, else 0.0."""

from __future__ import annotations

from typing import Any


def score(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Return 1.0 where `response` (text without special tokens) is `row["answer"]`, blanks around it aside.

    Raises:
        KeyError: the row has no `answer`.
    """
    return 1.0 if response.strip() == str(row["answer"]).strip() else 0.0
