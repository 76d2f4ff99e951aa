"""Runs of the whole topology: the real command line, DeepSpeed and vLLM, on the demo's model.

A `Site` is a folder in which runs are submitted as a user would; every process of a run can be found by
its environment, so a test can see who is left. Everything waits with a limit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpcflow.launch.handle import JobHandle
from hpcflow.observe.exit_report import ExitReport, read_exit
from hpcflow.observe.job import read_supervisor
from hpcflow.observe.metrics import MetricsReader, Row, read_rows
from hpcflow.rundir import RunDir

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "ppo.yaml"
PATIENCE_S = 600.0
POLL_S = 0.02


@dataclass(frozen=True)
class RealRun:
    """A submitted run."""

    run: RunDir

    def rows(self, kind: str = "train") -> list[Row]:
        """Rows as readers see them: the last of each step."""
        return [row for row in read_rows(self.run) if row["kind"] == kind]

    def written(self, kind: str = "train") -> list[Row]:
        """Every row that any attempt wrote, in the order of writing."""
        return [row for row in MetricsReader(self.run.metrics_jsonl).new_rows() if row["kind"] == kind]

    def figures(self, key: str, *, until: int | None = None) -> list[Any]:
        """One figure of the training steps 1 .. `until`."""
        return [row[key] for row in self.rows() if until is None or row["step"] <= until]

    def heldout(self) -> dict[int, float]:
        """Held-out scores by step."""
        return {row["step"]: row["score"] for row in self.rows("heldout")}

    def wait_for_step(self, step: int, *, attempt: int = 1) -> None:
        """Until the attempt has written a training row of `step`; fails at once when it ends before."""

        def reached() -> bool:
            rows = self.written()
            if rows and rows[-1]["attempt"] == attempt and rows[-1]["step"] >= step:
                return True
            assert self.exit(attempt) is None, self.exit(attempt)
            return False

        wait_until(reached)

    def exit(self, attempt: int) -> ExitReport | None:
        """The exit report of an attempt."""
        return read_exit(self.run.attempt(attempt))

    def ended(self, attempt: int = 1) -> ExitReport:
        """The exit report, once it is there."""
        wait_until(lambda: self.exit(attempt) is not None)
        report = self.exit(attempt)
        assert report is not None
        return report

    def supervisor(self, attempt: int = 1) -> psutil.Process:
        """The supervisor of an attempt."""
        mark = read_supervisor(self.run.attempt(attempt))
        process = None if mark is None else mark.process()
        assert process is not None
        return process

    def role(self, role: str, rank: int = 0, *, attempt: int = 1) -> psutil.Process:
        """The process that the supervisor started for a rank."""
        wanted = (role, str(rank))
        for process in self.supervisor(attempt).children():
            environ = process.environ()
            if (environ.get("HPCFLOW_ROLE"), environ.get("HPCFLOW_RANK")) == wanted:
                return process
        raise AssertionError(f"no process is {role} rank {rank}")

    def left(self, timeout_s: float = 15.0) -> list[str]:
        """What still lives of a run that has ended, after that time: role and command line.

        The report is published when all roles are gone; supervisor and controller leave after it.
        """
        deadline = time.monotonic() + timeout_s
        while (found := self.living()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return found

    def living(self) -> list[str]:
        """Processes of this run: role and command line."""
        found = []
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                # A job controller has no token yet; it carries the folder on its command line.
                ours = environ.get("HPCFLOW_RUN_DIR") == str(self.run.path)
                command = " ".join(process.cmdline())
                if (ours or str(self.run.path) in command) and process.pid != os.getpid():
                    found.append(f"{environ.get('HPCFLOW_ROLE')}: {command}")
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found


class Site:
    """A folder of runs and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HPCFLOW_")}
        self.environment = {**kept, "OMP_NUM_THREADS": "1"}
        self.runs: list[RealRun] = []

    def hpcflow(self, *arguments: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextmanager
    def following(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that follows, in a session of its own, as in a terminal."""
        with subprocess.Popen(
            self._command(*arguments, "--follow"),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as follower:
            try:
                yield follower
            finally:
                follower.kill()

    def run_of(self, name: str) -> RealRun:
        """The run in that folder, ended with the site at the latest."""
        real = RealRun(RunDir(self.folder / name))
        self.runs.append(real)
        return real

    def submit(self, name: str, overrides: Sequence[str], *, config: Path = CONFIG) -> RealRun:
        """Submit and leave."""
        real = self.run_of(name)
        done = self.hpcflow(*arguments(config, name, overrides))
        assert done.returncode == 0, done.stderr
        return real

    def trained(self, name: str, overrides: Sequence[str], *, config: Path = CONFIG) -> RealRun:
        """Submit and wait until all steps are done."""
        real = self.submit(name, overrides, config=config)
        report = real.ended()
        assert report.outcome == "done", report
        return real

    def end(self) -> None:
        """End what still runs."""
        for real in self.runs:
            if real.living():
                JobHandle(real.run).end_at_once()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "hpcflow", *arguments]


def arguments(config: Path, name: str, overrides: Sequence[str]) -> list[str]:
    """Of `hpcflow submit`, on this machine."""
    settings = [f"--set={override}" for override in overrides]
    return ["submit", str(config), "--cluster", "local", "--run-dir", name, *settings]


def interrupt(follower: subprocess.Popen[str]) -> None:
    """What Ctrl-C does in a terminal: INT to every process of its group."""
    os.killpg(follower.pid, signal.SIGINT)


def said_by(follower: subprocess.Popen[str]) -> str:
    """All that a command prints until it ends."""
    output, _ = follower.communicate(timeout=PATIENCE_S)
    return output


def wait_until(true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Wait until it holds; returns the seconds it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < timeout_s
        time.sleep(POLL_S)
    return time.monotonic() - started
