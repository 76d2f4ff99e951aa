"""Metrics as JSON lines: one writer (the driver) appends, any number of readers follow.

Rows of a killed attempt stay where they are: a resumed run repeats some steps, and readers take the last row
of a step. A reader never waits for the writer; it leaves an unfinished last line for its next look.
Never holds spec, plan or secrets.

Row: `kind` ("train", "heldout" or "save"), `attempt`, `step`, `time` (seconds since the epoch), then figures.
A figure is null where it was not measured or is no finite number.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcflow.rundir import RunDir

Row = dict[str, Any]

# Far more than the rows of two steps.
TAIL_BYTES = 1 << 17


class MetricsWriter:
    """Appends rows; a line that a killed attempt left unfinished is closed first."""

    def __init__(self, path: Path) -> None:
        unfinished = _ends_mid_line(path)
        self._file = path.open("ab", buffering=0)
        if unfinished:
            self._file.write(b"\n")

    def write(self, row: Mapping[str, object]) -> None:
        """Append one row, with one system call; on disk as far as this machine knows.

        Raises:
            OSError: the disk is full or gone.
        """
        text = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode() + b"\n")

    def close(self) -> None:
        """Make the rows durable and close the file."""
        os.fsync(self._file.fileno())
        self._file.close()


class MetricsReader:
    """Reads what was appended since the last look; for one follower."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_rows(self) -> list[Row]:
        """Complete rows since the last call; [] where the file is missing or has nothing new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [row for line in complete.splitlines() if (row := _parse(line)) is not None]


def read_rows(run: RunDir) -> list[Row]:
    """The last row of each step and kind, ascending by step; [] where none was written yet."""
    return last_of_each_step(MetricsReader(run.metrics_jsonl).new_rows())


def latest_row(run: RunDir, kind: str) -> Row | None:
    """The row of this kind that was written last, near the end of the file; None if there is none."""
    try:
        with run.metrics_jsonl.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    rows = (_parse(line) for line in reversed(lines[1:] if start else lines))
    return next((row for row in rows if row is not None and row["kind"] == kind), None)


def last_of_each_step(rows: Iterable[Row]) -> list[Row]:
    """Drop rows that a later row of the same kind and step replaces; ascending by step."""
    latest = {(row["step"], row["kind"]): row for row in rows}
    return [latest[key] for key in sorted(latest)]


def figure(row: Row, key: str) -> float | None:
    """A figure of a row; None where it was not measured or is no number."""
    value = row[key] if key in row else None  # noqa: SIM401 - says what a missing figure means
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _parse(line: bytes) -> Row | None:
    """A row, or None for a line that was cut off when its attempt was killed."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and isinstance(row.get("step"), int)
    return row if whole and isinstance(row.get("kind"), str) else None


def _ends_mid_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False


def _finite(value: object) -> object:
    """JSON has no NaN: what is no finite number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
