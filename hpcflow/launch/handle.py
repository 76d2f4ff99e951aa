"""A handle on a submitted run, from any terminal: ask it to stop, end it, wait until it is over.

submitit's own handle knows nothing once it is rebuilt in another process, so this one goes by the run folder:
the supervisor's pid and start time, or those of the controller that is about to start it. Signals go to
single processes of this host, by pid; never by name, never to a reused pid. Every wait has a limit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import psutil

from hpcflow.errors import UserError
from hpcflow.observe.job import read_job, read_supervisor
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.status import RunStatus, last_attempt, read_status
from hpcflow.rundir import RunDir

POLL_S = 0.1
# The supervisor ends its children within 5 s of a second request; then it is ended with all of them.
END_AT_ONCE_S = 10.0
AFTER_KILL_S = 5.0


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def wait(self, seconds: float) -> None:
        """Let that time pass."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Ending:
    """How a run was ended: the status afterwards, and whether it took force."""

    how: Literal["over already", "asked", "at once", "killed"]
    status: RunStatus


@dataclass
class JobHandle:
    """One submitted run on this host."""

    run: RunDir
    clock: Clock = field(default_factory=SystemClock)
    _asked: set[tuple[int, signal.Signals]] = field(default_factory=set)

    def status(self) -> RunStatus:
        """Look once."""
        return read_status(self.run, clock=self.clock.now)

    def ask_to_stop(self, signum: signal.Signals = signal.SIGTERM) -> bool:
        """Ask for a checkpoint and an orderly end, once per process; False where nobody was there to ask.

        Before the supervisor has said who it is, the controller is asked: it passes TERM on. Call again until
        the run is over: a supervisor that has only just begun is asked then.

        Raises:
            UserError: the job runs on another host.
        """
        leader = self._leader()
        process = None if leader is None else leader.process()
        if leader is None or process is None:
            return False
        chosen = signum if leader == self._supervisor() else signal.SIGTERM
        if (leader.pid, chosen) not in self._asked:
            self._asked.add((leader.pid, chosen))
            _send(process, chosen)
        return True

    def end_at_once(self) -> Ending:
        """Ask a second time, which ends all at once without a checkpoint; then end what is left by pid."""
        family = self._family()
        supervisor = self._supervisor()
        process = None if supervisor is None else supervisor.process()
        if process is not None:
            _send(process, signal.SIGTERM)
            if self._wait(END_AT_ONCE_S, self._quiet):
                return Ending("at once", self.status())
        family += [member for member in self._family() if member not in family]
        for member in family:
            _send(member, signal.SIGKILL)
        self._wait(AFTER_KILL_S, lambda: not any(_alive(member) for member in family))
        return Ending("killed", self.status())

    def cancel(self, timeout_s: float) -> Ending:
        """End the run: ask, wait at most `timeout_s` for its checkpoint, then end it at once."""
        if not self.status().active and self._quiet():
            return Ending("over already", self.status())

        def asked_and_over() -> bool:
            # Not TERM, of which a second one ends all at once: another cancel may be under way.
            self.ask_to_stop(signal.SIGUSR2)
            return self._quiet()

        if self._wait(timeout_s, asked_and_over):
            return Ending("asked", self.status())
        # The second TERM, of `end_at_once`, is the one that ends all.
        self.ask_to_stop()
        if self._wait(POLL_S, self._quiet):
            return Ending("asked", self.status())
        return self.end_at_once()

    def _quiet(self) -> bool:
        """Neither supervisor nor controller is left on this host."""
        return self._leader() is None

    def _wait(self, timeout_s: float, done: Callable[[], bool]) -> bool:
        deadline = self.clock.now() + timeout_s
        while not done():
            if self.clock.now() >= deadline:
                return False
            self.clock.wait(POLL_S)
        return True

    def _supervisor(self) -> ProcessMark | None:
        attempt = last_attempt(self.run)
        return None if attempt is None else read_supervisor(attempt)

    def _leader(self) -> ProcessMark | None:
        """The supervisor if it is alive, else the controller if it is; None where neither is."""
        job = read_job(self.run)
        for mark in (self._supervisor(), None if job is None else job.controller):
            if mark is None:
                continue
            if not mark.here():
                raise UserError(f"{self.run.name} runs on {mark.host}", hint=f"end it from {mark.host}")
            if mark.process() is not None:
                return mark
        return None

    def _family(self) -> list[psutil.Process]:
        """Controller, supervisor and all that they started, parents first."""
        family: list[psutil.Process] = []
        job = read_job(self.run)
        for mark in (None if job is None else job.controller, self._supervisor()):
            process = None if mark is None or not mark.here() else mark.process()
            if process is None:
                continue
            try:
                members = [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            family += [member for member in members if member not in family]
        return family


def _send(process: psutil.Process, signum: signal.Signals) -> None:
    try:
        process.send_signal(signum)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied as error:
        raise UserError(f"process {process.pid} of this run belongs to another user") from error


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
