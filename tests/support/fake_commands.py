"""Slurm's commands as a table of answers: `FakeCommands({"squeue": answer})`; every call is noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcflow.slurm.commands import CommandResult


def said(stdout: str = "", stderr: str = "", code: int | None = 0) -> CommandResult:
    """An answer; `code` None: its time was up."""
    return CommandResult(code, stdout, stderr)


@dataclass
class FakeCommands:
    """Runs nothing; a command without an answer is a fault of the test."""

    answers: Mapping[str, CommandResult]
    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        assert timeout_s > 0
        self.calls.append(list(argv))
        return self.answers[argv[0]]
