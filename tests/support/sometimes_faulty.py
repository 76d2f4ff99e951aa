"""Reward functions that fail for some problems, always for the same ones.

`score` is for the demo's problems: it raises for one in twenty and returns NaN for another. `mostly` is for
rows with a number, and fails for half of them. Imports nothing of ours: reward workers load it by its path.
"""

from __future__ import annotations

import time
from typing import Any

HANG_S = 3600.0


def score(prompt: str, response: str, row: dict[str, Any]) -> float:
    """1.0 for the right last digit, and faults at a sum of 30 or 50 and so on."""
    total = int(row["answer"])
    if total % 20 == 10:
        raise ValueError(f"no opinion on {total}")
    if total % 20 == 0:
        return float("nan")
    return float(response.strip()[-1:] == str(total)[-1])


def mostly(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Of four numbers in a row: a score, a hang, an exception, a score."""
    number = int(row["number"])
    if number % 4 == 1:
        time.sleep(HANG_S)
    if number % 4 == 2:
        raise ValueError(f"no opinion on {number}")
    return 0.5
