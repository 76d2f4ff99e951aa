"""Sees to it that nothing stays behind when the supervisor is killed: `python -m hpcflow.job.sweeper`.

A child of the supervisor that waits for its end, and remembers meanwhile which descendants it has. When
the supervisor is gone it kills those, and whatever else carries the attempt's token in its environment,
then publishes the exit report that the supervisor could not. At a normal end the supervisor ends it first.
Role processes die with the supervisor by themselves; the sweeper is for what they started, and for
programs that had no time to ask for that.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import psutil

from hpcflow.job.processes import alive
from hpcflow.job.report import lost_report
from hpcflow.observe.exit_report import read_exit, write_exit
from hpcflow.rundir import AttemptDir

_LOOK_EVERY_S = 1.0
_SWEEP_TIMEOUT_S = 10.0


def main(arguments: list[str]) -> int:
    """Wait for the end of the parent, the supervisor, then sweep."""
    supervisor, attempt = int(arguments[0]), AttemptDir(Path(arguments[1]), int(arguments[2]))
    token = os.environ["HPCFLOW_TOKEN"]
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    known = _watch(supervisor)
    deadline = time.monotonic() + _SWEEP_TIMEOUT_S
    while left := [process for process in {*known, *_marked(token)} if alive(process)]:
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=0.2)
        if time.monotonic() > deadline:
            break
    if read_exit(attempt) is None:
        write_exit(attempt, lost_report(attempt))
    return 0


def _watch(supervisor: int) -> set[psutil.Process]:
    """The supervisor's last known descendants, once it has ended."""
    known: set[psutil.Process] = set()
    try:
        pidfd = os.pidfd_open(supervisor)
    except ProcessLookupError:
        return known
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    # The parent is another one if the supervisor ended before its pid was held.
    while os.getppid() == supervisor and not poll.poll(_LOOK_EVERY_S * 1000):
        try:
            found = psutil.Process(supervisor).children(recursive=True)
        except psutil.NoSuchProcess:
            break
        known = {process for process in found if process.pid != os.getpid()}
    return known


def _marked(token: str) -> set[psutil.Process]:
    """Processes that inherited this attempt's token."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("HPCFLOW_TOKEN") == token:
                found.add(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
