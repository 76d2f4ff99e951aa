"""Where a follower shows what it sees: a bar on a terminal, lines elsewhere, JSON for programs.

A view only shows; it never looks at the run or waits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Protocol

import msgspec

from hpcflow.cli import screens
from hpcflow.observe import slurm_judge
from hpcflow.observe.metrics import Row
from hpcflow.observe.status import RunStatus

LINE_EVERY_STEPS = 10


class View(Protocol):
    """Where a follower shows what it sees."""

    def progress(self, status: RunStatus, rows: list[Row], waiting: list[str]) -> None:
        """The newest status, all training rows of the attempt, and who is not ready yet."""

    def row(self, row: Row, steps: int | None) -> None:
        """A new row of metrics."""

    def line(self, text: str) -> None:
        """A line for people."""

    def close(self, status: RunStatus) -> None:
        """Nothing more will be shown but lines."""


class PlainView:
    """Lines only: for pipes, files and terminals without a bar."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._said = ""

    def progress(self, status: RunStatus, rows: list[Row], waiting: list[str]) -> None:
        """Say each phase of the start once; steps speak through their rows."""
        text = start_text(status, waiting)
        if text and text != self._said:
            self._write(text)
        self._said = text or self._said

    def row(self, row: Row, steps: int | None) -> None:
        """Every tenth step and the last, and each evaluation."""
        text = row_text(row, steps)
        if text:
            self._write(text)

    def line(self, text: str) -> None:
        """Print it."""
        self._write(text)

    def close(self, status: RunStatus) -> None:
        """Nothing to take away."""


class BarView:
    """A progress bar, with the plain lines above it."""

    def __init__(self) -> None:
        from hpcflow.cli.render import ProgressBar  # rich is slow to import

        self._bar = ProgressBar()

    def progress(self, status: RunStatus, rows: list[Row], waiting: list[str]) -> None:
        """Renew the bar."""
        text = start_text(status, waiting) or status.phase or status.state
        figures = screens.bar_figures(status, rows)
        self._bar.show(text, step=status.step, steps=status.steps, figures=figures)

    def row(self, row: Row, steps: int | None) -> None:
        """As in the plain view."""
        text = row_text(row, steps)
        if text:
            self._bar.line(text)

    def line(self, text: str) -> None:
        """Print it above the bar."""
        self._bar.line(text)

    def close(self, status: RunStatus) -> None:
        """Give the terminal back."""
        self._bar.close()


class JsonView:
    """One JSON object per line: every row, and the status at the end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def progress(self, status: RunStatus, rows: list[Row], waiting: list[str]) -> None:
        """Only rows and the end are told."""

    def row(self, row: Row, steps: int | None) -> None:
        """The row as the driver wrote it."""
        self._write(json.dumps({"event": "row", **row}, ensure_ascii=False))

    def line(self, text: str) -> None:
        """For people; not in JSON."""

    def close(self, status: RunStatus) -> None:
        """The status as `hpcflow status --json` shows it."""
        end = {"event": "end", "status": msgspec.to_builtins(status)}
        self._write(json.dumps(end, ensure_ascii=False))


def start_text(status: RunStatus, waiting: list[str]) -> str:
    """What the start is waiting for; empty once the run works."""
    if status.state == "queued":
        again = " again" if status.exit is not None else ""
        why = "" if status.slurm is None else slurm_judge.why(status.slurm)
        return f"waiting for the job to start{again}{': ' if why else ''}{why}"
    if status.state == "ending":
        return "waiting for Slurm to end the job"
    if status.state != "starting":
        return ""
    return f"waiting for {', '.join(waiting)}" if waiting else "starting the roles"


def row_text(row: Row, steps: int | None) -> str:
    """The plain line of a row that is worth one, else an empty text."""
    if row["kind"] == "heldout":
        return f"step {row['step']}: held-out score {screens.number(row, 'score', '.3f')}"
    if row["kind"] != "train" or steps is None:
        return ""
    worth = row["step"] % LINE_EVERY_STEPS == 0 or row["step"] == steps
    return screens.metrics_line(row, steps) if worth else ""


def make_view(*, as_json: bool, write: Callable[[str], None]) -> View:
    """A bar on a terminal, lines elsewhere, JSON if asked."""
    if as_json:
        return JsonView(write)
    # Python has no sys.stdout where the shell closed it.
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return BarView() if terminal else PlainView(write)
