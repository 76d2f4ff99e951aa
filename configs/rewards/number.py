"""Reward of ppo-smollm2.yaml: 1.0 where the last whole number of the response is the answer, else 0.0."""

from __future__ import annotations

import re
from typing import Any

WHOLE_NUMBER = re.compile(r"\d+")


def score(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Judge the last run of digits in `response`; a response that goes on to another number is wrong.

    Raises:
        KeyError: the row has no `answer`.
    """
    numbers = WHOLE_NUMBER.findall(response)
    return 1.0 if numbers and numbers[-1] == str(row["answer"]) else 0.0
