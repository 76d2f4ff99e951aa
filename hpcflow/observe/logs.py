"""The logs of one attempt as one stream of lines, each with the process that wrote it.

Lines of one process keep their order; lines of different processes come as they are found, for logs carry no
common clock. Never waits; bytes that are not UTF-8 are replaced, never refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcflow.rundir import AttemptDir, RunDir

_LOG = re.compile(r"(?P<role>[a-z_]+)\.(?P<rank>[0-9]+)\.log")


@dataclass(frozen=True)
class LogLine:
    """One line, without its end."""

    role: str
    rank: int
    text: str


@dataclass(frozen=True)
class LogFile:
    """The log of one process."""

    role: str
    rank: int
    path: Path


def log_files(attempt: AttemptDir, *, role: str | None = None, rank: int | None = None) -> list[LogFile]:
    """Logs that exist by now, by role and rank."""
    if not attempt.logs.is_dir():
        return []
    matches = [(path, _LOG.fullmatch(path.name)) for path in attempt.logs.iterdir()]
    files = [LogFile(match["role"], int(match["rank"]), path) for path, match in matches if match]
    chosen = [file for file in files if role in (None, file.role) and rank in (None, file.rank)]
    return sorted(chosen, key=lambda file: (file.role, file.rank))


class LogReader:
    """Reads what the logs of an attempt gained since the last look; new files are picked up."""

    def __init__(self, attempt: AttemptDir, *, role: str | None = None, rank: int | None = None) -> None:
        self._attempt = attempt
        self._role = role
        self._rank = rank
        self._offsets: dict[Path, int] = {}

    def new_lines(self, *, final: bool = False) -> Iterator[LogLine]:
        """Complete lines since the last call; with `final` an unfinished last line too."""
        for file in log_files(self._attempt, role=self._role, rank=self._rank):
            with file.path.open("rb") as stream:
                stream.seek(self._offsets.get(file.path, 0))
                content = stream.read()
            complete = content if final else content[: content.rfind(b"\n") + 1]
            self._offsets[file.path] = self._offsets.get(file.path, 0) + len(complete)
            for line in complete.split(b"\n")[: -1 if complete.endswith(b"\n") else None]:
                if complete:
                    yield LogLine(file.role, file.rank, line.decode(errors="replace").rstrip("\r"))


def submission_tail(run: RunDir, lines: int = 20) -> list[str]:
    """What the newest submission printed before the supervisor had a log of its own."""
    if not run.submitit.is_dir():
        return []
    files = sorted(run.submitit.glob("*_log.err"), key=lambda path: path.stat().st_mtime)
    text = files[-1].read_text(errors="replace") if files else ""
    return text.splitlines()[-lines:]
