"""Children of a supervisor, a node agent or a command's rank: started, watched by pidfd, ended whole.

Never signals anything but own children and their descendants, by pid and start time. The calling process
must have called `signals.adopt_orphans`: then a descendant cannot leave the tree by losing its parent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from hpcflow.job.verdict import Member
from hpcflow.signals import die_with_parent

_SWEEP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Child:
    """One process; `pidfd` becomes readable when it ends."""

    member: Member
    process: subprocess.Popen[bytes]
    pidfd: int


class Children:
    """The children of this process that run."""

    def __init__(self) -> None:
        self._children: dict[Member, Child] = {}
        self._spared: set[int] = set()

    @property
    def running(self) -> list[Child]:
        """Those that have not been reaped."""
        return list(self._children.values())

    def start(
        self,
        member: Member,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: Path,
        folder: Path | None = None,
        die_with_us: bool = False,
    ) -> Child:
        """Start a process in a session of its own, so that a terminal's signals do not reach it.

        With `die_with_us` the kernel kills it when the calling thread ends; no other thread may run yet.

        Raises:
            OSError: the program cannot be started.
        """
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=dict(environ),
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()) if die_with_us else None,
            )
        child = Child(member, process, os.pidfd_open(process.pid))
        self._children[member] = child
        return child

    def spare(self, pid: int) -> None:
        """Leave this child alone in `kill` and `sweep`."""
        self._spared.add(pid)

    def wait(self, timeout_s: float, *wakers: int) -> None:
        """Until a child ends, one of the descriptors `wakers` is readable, or the time is over."""
        poll = select.poll()
        for descriptor in (*(child.pidfd for child in self.running), *wakers):
            poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def reap(self) -> list[tuple[Child, int]]:
        """Children that have ended, with exit code or minus signal; adopted ones are buried unnamed."""
        ended: list[tuple[Child, int]] = []
        for child in self.running:
            status = child.process.poll()
            if status is not None:
                os.close(child.pidfd)
                del self._children[child.member]
                ended.append((child, status))
        self._bury_adopted()
        return ended

    def send(self, signum: int, only: Callable[[Member], bool] = lambda member: True) -> None:
        """Signal children, not their descendants; ended ones are passed over."""
        for child in self.running:
            if only(child.member):
                child.process.send_signal(signum)

    def kill(self, only: Callable[[Member], bool] = lambda member: True) -> None:
        """Kill children and all descendants but those of children that are left out."""
        left_out = {
            process
            for child in self.running
            if not only(child.member)
            for process in _tree(child.process.pid)
        }
        _kill(process for process in self._descendants() if process not in left_out)

    def sweep(self) -> list[int]:
        """Kill descendants until none is left; returns the pids of those that would not end."""
        deadline = time.monotonic() + _SWEEP_TIMEOUT_S
        while left := self._descendants():
            _kill(left)
            psutil.wait_procs(left, timeout=0.2)
            self.reap()
            if time.monotonic() > deadline:
                return [process.pid for process in left]
        return []

    def _descendants(self) -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        return [process for process in found if process.pid not in self._spared and alive(process)]

    def _bury_adopted(self) -> None:
        """Reap orphans that became our children; stops at a child that `reap` has yet to see."""
        ours = {child.process.pid for child in self.running} | self._spared
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in ours:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def alive(process: psutil.Process) -> bool:
    """Whether the very process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)  # psutil refuses a pid that was given away
        except psutil.NoSuchProcess:
            continue
