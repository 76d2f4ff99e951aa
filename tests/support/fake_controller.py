"""A stand-in for Slurm's controller behind the real client: it holds one job, and counts who asks what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hpcflow.slurm.client import SlurmClient
from hpcflow.slurm.commands import CommandResult

FORGOTTEN = CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n")
SILENT = CommandResult(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
LATE = CommandResult(None, "", "")
EMPTY = CommandResult(0, "", "")


def a_line(
    state: str,
    reason: str = "None",
    *,
    nodes: str = "",
    start: float | None = None,
    count: int = 1,
    listed: str = "7",
    raw: str = "7",
) -> str:
    """One line of squeue, in the format of the client."""
    began = "N/A" if start is None else f"{datetime.fromtimestamp(start):%Y-%m-%dT%H:%M:%S}"
    return f"{listed}|{raw}|{state}|{count}|{began}|{nodes}|{reason}\n"


@dataclass
class FakeController:
    """Answers squeue by `answer`; `on_command` sees every scancel, as one line, and may change the answer."""

    answer: CommandResult = EMPTY
    on_command: Callable[[str], CommandResult | None] = lambda line: None
    questions: int = 0
    commands: list[str] = field(default_factory=list)

    def job(self, state: str, reason: str = "None", *, nodes: str = "", start: float | None = None) -> None:
        """From now on job 7 is in this state."""
        self.answer = CommandResult(0, a_line(state, reason, nodes=nodes, start=start), "")

    def lines(self, *lines: str) -> None:
        """From now on squeue says this."""
        self.answer = CommandResult(0, "".join(lines), "")

    def client(self, slurm_conf: str | None = None) -> SlurmClient:
        """The real client, which asks here."""
        return SlurmClient(self._run)

    def _run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        assert timeout_s > 0
        if argv[0] == "squeue":
            self.questions += 1
            return self.answer
        line = " ".join(argv)
        self.commands.append(line)
        return self.on_command(line) or CommandResult(0, "", "")
