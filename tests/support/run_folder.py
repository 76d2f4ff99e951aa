"""Run folders as launcher, supervisor and driver leave them, with real files and a real process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpcflow import atomic
from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.job import JobRecord
from hpcflow.observe.metrics import MetricsWriter
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.state import DriverState
from hpcflow.rundir import AttemptDir, RunDir

WEIRD_NAME = "a b, 'c' \"d\" $HOME;#(e) -- \u00fcn\u00efc\u00f6de \u4e2d"


@contextmanager
def sleeping_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that only waits, for at most two minutes."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def gone_process() -> ProcessMark:
    """The mark of a process that has ended: its pid belongs to a younger one."""
    return ProcessMark(os.getpid(), 1.0, socket.gethostname())


@dataclass
class RunMaker:
    """Makes the files of a run one by one; `alive` is what leads it."""

    path: Path
    alive: ProcessMark = field(default_factory=lambda: ProcessMark.of(os.getpid()))

    @property
    def run(self) -> RunDir:
        """The run."""
        return RunDir(self.path)

    def submitted(self, *, attempt: int = 1, job_id: str = "4711") -> RunMaker:
        """As the launcher leaves it."""
        self.path.mkdir(parents=True, exist_ok=True)
        atomic.write_text(self.run.spec_json, "{}")
        record = JobRecord(
            executor="local",
            job_id=job_id,
            submitted="2026-12-01T12:00:00+00:00",
            attempt=attempt,
            controller=self.alive,
        )
        atomic.write_json(self.run.job_json, msgspec.to_builtins(record))
        return self

    def submitted_to_slurm(
        self, *, attempt: int = 1, job_id: str = "7", time: float = 1e6, slurm_conf: str | None = None
    ) -> RunMaker:
        """As a submission to Slurm leaves it."""
        self.submitted(attempt=attempt, job_id=job_id)
        record = JobRecord(
            executor="slurm",
            job_id=job_id,
            submitted=datetime.fromtimestamp(time).astimezone().isoformat(),
            attempt=attempt,
            slurm_conf=slurm_conf,
        )
        atomic.write_json(self.run.job_json, msgspec.to_builtins(record))
        return self

    def aged(self, seconds: float, *, now: float) -> None:
        """All that the run has written was written so long ago."""
        for file in self.path.rglob("*"):
            os.utime(file, (now - seconds, now - seconds))

    def started(self, number: int = 1) -> AttemptDir:
        """An attempt with a supervisor."""
        attempt = self.run.attempt(number)
        attempt.logs.mkdir(parents=True)
        atomic.write_json(attempt.supervisor_json, msgspec.to_builtins(self.alive))
        return attempt

    def driving(self, *, attempt: int = 1, step: int = 3, time: float = 1e6, **other: Any) -> None:
        """The driver's state."""
        state = DriverState(
            attempt=attempt, step=step, steps=200, phase="generate", time=time, started=time - 60
        )
        state = msgspec.structs.replace(state, **other)
        atomic.write_json(self.run.state_json, msgspec.to_builtins(state))

    def rows(self, *rows: dict[str, Any]) -> None:
        """Rows of metrics."""
        writer = MetricsWriter(self.run.metrics_jsonl)
        for row in rows:
            writer.write(row)
        writer.close()

    def checkpoint(self, step: int, *, complete: bool = True) -> None:
        """A checkpoint folder."""
        folder = self.run.checkpoint(step)
        folder.mkdir(parents=True)
        if complete:
            manifest = {"format": 1, "step": step, "attempt": 1, "driver": {}, "files": []}
            atomic.write_json(folder / "manifest.json", manifest)

    def ended(self, report: ExitReport, *, attempt: int = 1) -> None:
        """The supervisor's report."""
        atomic.write_json(self.run.attempt(attempt).exit_json, msgspec.to_builtins(report))


def train_row(step: int, *, attempt: int = 1, **figures: Any) -> dict[str, Any]:
    """A training row; one step takes two seconds."""
    usual = {"loss": 0.5, "reward": 0.25, "kl": 0.01, "grad_norm": 1.5, "tokens_per_second": 900.0}
    head = {"kind": "train", "attempt": attempt, "step": step, "time": 1e6 + 2.0 * step}
    return {**head, **usual, **figures}


def elsewhere() -> ProcessMark:
    """A process of another host."""
    return ProcessMark(os.getpid(), 1e6, f"not-{socket.gethostname()}")
