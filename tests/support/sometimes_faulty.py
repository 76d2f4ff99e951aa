"""A reward function for the demo that fails for some problems, always for the same ones.

`score` raises for one problem in twenty and returns NaN for another; `mostly` does so for most problems, and
hangs for some. Imports nothing of ours: reward workers load it by its path.
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
    """Raises for two problems in three, hangs for one in sixty or so."""
    total = int(row["answer"])
    if total % 30 == 7:
        time.sleep(HANG_S)
    if total % 3:
        raise ValueError(f"no opinion on {total}")
    return 0.5
