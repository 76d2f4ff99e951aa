"""Take a private Slurm cluster down: its jobs first, then its daemons, then what is left of its steps.

Only processes of this cluster are ended, each by its pid: a daemon is one of ours if its command line or its
environment names this cluster's configuration or key, or if it writes to a log of this cluster. psutil keeps
the start time beside the pid, so a pid that was given to another process is left alone. Works on a cluster
that was never wholly up, from whatever part of it is there; waits for jobs, then daemons, each with a limit.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from slurm_layout import FOLDERS, Layout

DAEMONS = frozenset({"munged", "slurmctld", "slurmscriptd", "slurmd"})
STEP_DAEMON = "slurmstepd"
JOBS_LIMIT_S = 20.0
TERM_LIMIT_S = 6.0
ALONE_LIMIT_S = 1.0
KILL_LIMIT_S = 5.0
ANSWER_LIMIT_S = 5.0
POLL_S = 0.05


class StillThereError(Exception):
    """Processes of the cluster that do not end even by KILL."""


def environment(layout: Layout) -> dict[str, str]:
    """The caller's environment without other Slurm settings, pointing at this cluster."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }
    path = os.pathsep.join([kept.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return {**kept, "PATH": path, "SLURM_CONF": str(layout.conf)}


def ask(layout: Layout, *command: str) -> str | None:
    """What a Slurm command prints, or None where it fails or gives no answer in time."""
    try:
        answer = subprocess.run(
            command,
            env=environment(layout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def stop(layout: Layout) -> int:
    """End all jobs and processes of the cluster; returns how many processes there were.

    Raises StillThereError where something survives KILL.
    """
    daemons = _ours(layout, DAEMONS)
    tasks = _tasks(layout)
    names = {daemon.info["name"] for daemon in daemons}
    if {"slurmctld", "slurmd"} <= names:
        _cancel_all(layout)
    _signal(daemons, signal.SIGTERM)
    # Without nodes nothing runs, but the controller would go on to call those that it believes in.
    left = _wait(daemons, TERM_LIMIT_S if "slurmd" in names else ALONE_LIMIT_S)
    # What was being started when we looked is found by looking again.
    left += _ours(layout, DAEMONS) + _tasks(layout) + _alive(tasks)
    _signal(left, signal.SIGKILL)
    if left := _wait(left, KILL_LIMIT_S):
        raise StillThereError(", ".join(f"{process.pid} ({process.name()})" for process in left))
    return len({process.pid for process in (*daemons, *tasks)})


def running(layout: Layout) -> Counter[str]:
    """How many daemons of a name this cluster has; commands wait long for a controller that is not there."""
    return Counter(daemon.info["name"] for daemon in _ours(layout, DAEMONS))


def purge(layout: Layout) -> None:
    """Remove the files of a stopped cluster, and its folder where nothing else is in it."""
    for folder in FOLDERS:
        shutil.rmtree(layout.root / folder, ignore_errors=True)
    layout.lock.unlink(missing_ok=True)
    with suppress(OSError):
        layout.root.rmdir()


def _cancel_all(layout: Layout) -> None:
    """Cancel and wait: the steps end while the daemons that know of them are there."""

    def gone() -> bool:
        jobs = ask(layout, "squeue", "--noheader", "--format=%i %T")
        if not jobs:
            # Without an answer there is nothing to wait for: the processes are ended below.
            return True
        lines = [line.split() for line in jobs.splitlines()]
        # A heterogeneous job is cancelled by its leader (7+1 is 7), an array by its base (7_[0-3] is 7).
        ids = {re.split(r"[+_]", job)[0] for job, state in lines if state != "COMPLETING"}
        if ids:
            ask(layout, "scancel", "--quiet", *sorted(ids))
        return False

    wait_until(gone, JOBS_LIMIT_S)


def _ours(layout: Layout, names: Iterable[str]) -> list[psutil.Process]:
    return [process for process in _named(names) if _belongs(process, layout)]


def _named(names: Iterable[str]) -> list[psutil.Process]:
    wanted = set(names)
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] in wanted]


def _belongs(process: psutil.Process, layout: Layout) -> bool:
    """Whether the process is of this cluster; what is hidden from us or just ended is not."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        argv = process.cmdline()
        if process.name() == "munged":
            return f"--key-file={layout.munge_key}" in argv
        if "-f" in argv:
            return str(layout.conf) in argv
        if process.environ().get("SLURM_CONF") == str(layout.conf):
            return True
        # A step's daemon hides both, but keeps the log of its node open.
        return any(path.startswith(layout.daemon_logs) for path in _open_paths(process))
    except (psutil.Error, OSError):
        return False


def _open_paths(process: psutil.Process) -> list[str]:
    """Of deleted files, too, which psutil leaves out: the folder of a running cluster may be gone."""
    paths = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        # Files are closed while we look.
        with suppress(OSError):
            paths.append(os.readlink(link))
    return paths


def _tasks(layout: Layout) -> list[psutil.Process]:
    """Steps that are left, and what they started."""
    found = []
    for step in _ours(layout, {STEP_DAEMON}):
        with suppress(psutil.Error):
            found += [step, *step.children(recursive=True)]
    return found


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def _alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in processes:
        # A zombie has ended; it waits for its parent only.
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def _wait(processes: list[psutil.Process], limit_s: float) -> list[psutil.Process]:
    wait_until(lambda: not _alive(processes), limit_s)
    return _alive(processes)


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition came true within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
