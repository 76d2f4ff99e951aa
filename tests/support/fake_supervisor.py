"""A stand-in for the supervisor, as its own process: how it takes requests to stop is its only behaviour.

    python fake_supervisor.py RUN_DIR ATTEMPT MANNER

MANNER: `obeys` (ends at the first request), `slow` (at the second INT or TERM), `deaf` (never). Publishes
supervisor.json and exit.json as the real one does, keeps the signals' numbers in RUN_DIR/signals.txt, and has
one child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from hpcflow import atomic
from hpcflow.observe.exit_report import ExitReport, write_exit
from hpcflow.observe.processes import ProcessMark
from hpcflow.rundir import RunDir

LIFE_S = 60.0
NEEDED = {"obeys": 1, "slow": 2, "deaf": 1000}


def main(run: RunDir, number: int, manner: str) -> None:
    """Live until asked often enough, or for a minute."""
    asked: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, lambda got, _: asked.append(got))
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIFE_S})"])
    (run.path / "child.txt").write_text(str(child.pid))
    attempt = run.attempt(number)
    attempt.logs.mkdir(parents=True, exist_ok=True)
    atomic.write_json(attempt.supervisor_json, msgspec.to_builtins(ProcessMark.of(os.getpid())))
    deadline = time.monotonic() + LIFE_S
    while not _enough(asked, manner) and time.monotonic() < deadline:
        time.sleep(0.01)
        atomic.write_text(run.path / "signals.txt", " ".join(str(signum) for signum in asked))
    atomic.write_text(run.path / "signals.txt", " ".join(str(signum) for signum in asked))
    child.kill()
    child.wait(10)
    cause = "stopped" if len(asked) < 2 else "aborted"
    report = ExitReport(
        attempt=number,
        outcome="stopped",
        cause=cause,
        role="driver",
        rank=0,
        host="here",
        message=cause,
        time=time.time(),
    )
    write_exit(attempt, report)


def _enough(asked: list[int], manner: str) -> bool:
    counted = [signum for signum in asked if manner != "slow" or signum != signal.SIGUSR2]
    return len(counted) >= NEEDED[manner]


@contextmanager
def fake_supervisor(run: RunDir, manner: str, *, attempt: int = 1) -> Iterator[psutil.Process]:
    """One that has published its pid; it and its child are gone afterwards."""
    command = [sys.executable, __file__, str(run.path), str(attempt), manner]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 20
        while not run.attempt(attempt).supervisor_json.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait(10)
        child = int((run.path / "child.txt").read_text())
        if psutil.pid_exists(child):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
