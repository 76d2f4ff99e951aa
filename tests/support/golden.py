"""Texts that people read, kept as files: a change of one is seen in review.

`HPCFLOW_WRITE_GOLDEN=1 pytest ...` writes what the code says now.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def check_golden(name: str, text: str) -> None:
    """`text` is what tests/golden/NAME holds."""
    path = FOLDER / name
    if os.environ.get("HPCFLOW_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; see {__name__}"
