"""The logs of a run as one stream of lines, each with the attempt and the process that wrote it.

Job steps have logs of their own, as `step_actor_reference.0`: what `srun` and its node agents wrote. What
Slurm's batch script wrote, in whichever attempt, is role `batch` of no attempt. Lines of one process keep
their order; lines of different processes come as they are found, for logs carry no common clock. Never waits;
bytes that are not UTF-8 are replaced, never refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcflow.rundir import AttemptDir, RunDir

BATCH = "batch"

_LOG = re.compile(r"(?P<role>[A-Za-z0-9_+-]+)\.(?P<rank>[0-9]+)\.log")


@dataclass(frozen=True)
class LogFile:
    """The log of one process; `attempt` is None for what belongs to no single one."""

    attempt: int | None
    role: str
    rank: int
    path: Path

    @property
    def source(self) -> str:
        """Who writes it, as lines are marked: `2/actor.0`, or `batch.0`."""
        return self.name if self.attempt is None else f"{self.attempt}/{self.name}"

    @property
    def name(self) -> str:
        """Role and rank: `actor.0`."""
        return f"{self.role}.{self.rank}"


@dataclass(frozen=True)
class LogLine:
    """One line, without its end, and the log that it stands in."""

    file: LogFile
    text: str


@dataclass(frozen=True)
class Chosen:
    """Which logs: None is every role, every rank."""

    role: str | None = None
    rank: int | None = None

    def __contains__(self, file: LogFile) -> bool:
        return self.role in (None, file.role) and self.rank in (None, file.rank)


def log_files(attempts: Iterable[AttemptDir], chosen: Chosen | None = None) -> list[LogFile]:
    """Logs that exist by now, by attempt, role and rank."""
    files: list[LogFile] = []
    for attempt in attempts:
        if not attempt.logs.is_dir():
            continue
        matches = [(path, _LOG.fullmatch(path.name)) for path in attempt.logs.iterdir()]
        found = [LogFile(attempt.number, m["role"], int(m["rank"]), path) for path, m in matches if m]
        files += sorted(found, key=lambda file: (file.role, file.rank))
    return [file for file in files if chosen is None or file in chosen]


def batch_log(run: RunDir, chosen: Chosen | None = None) -> list[LogFile]:
    """The log of Slurm's batch script, if there is one."""
    file = LogFile(None, BATCH, 0, run.batch_log)
    return [file] if file.path.is_file() and (chosen is None or file in chosen) else []


class LogReader:
    """Reads what logs gained since the last look."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def new_lines(self, files: Iterable[LogFile], *, final: bool = False) -> Iterator[LogLine]:
        """Complete lines since these were looked at last; with `final` an unfinished last line too."""
        for file in files:
            with file.path.open("rb") as stream:
                stream.seek(self._offsets.get(file.path, 0))
                content = stream.read()
            complete = content if final else content[: content.rfind(b"\n") + 1]
            self._offsets[file.path] = self._offsets.get(file.path, 0) + len(complete)
            for line in complete.split(b"\n")[: -1 if complete.endswith(b"\n") else None]:
                if complete:
                    yield LogLine(file, line.decode(errors="replace").rstrip("\r"))


def submission_tail(run: RunDir, lines: int = 20) -> list[str]:
    """What the newest submission printed before the supervisor had a log of its own."""
    if run.batch_log.is_file():
        newest = run.batch_log
    else:
        files = list(run.submitit.glob("*_log.err")) if run.submitit.is_dir() else []
        if not files:
            return []
        newest = max(files, key=lambda path: path.stat().st_mtime)
    return newest.read_text(errors="replace").splitlines()[-lines:]
