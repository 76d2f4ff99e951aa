"""The processes of a run on this host: signalled by pid, never by name, and never by a reused pid.

submitit's own handle knows nothing once it is rebuilt in another process, so this goes by the run folder: the
supervisor's pid and start time, or those of the controller that is about to start it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import psutil

from hpcflow.errors import UserError
from hpcflow.observe.job import read_job, read_supervisor
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.signs import last_attempt
from hpcflow.rundir import RunDir

# The supervisor ends its children within 5 s of a second request; then it is ended with all of them.
END_AT_ONCE_S = 10.0
AFTER_KILL_S = 5.0

# Waits at most so many seconds until the condition holds; whether it did.
Wait = Callable[[float, Callable[[], bool]], bool]


@dataclass
class LocalJob:
    """Controller and supervisor of a run on this host."""

    run: RunDir
    wait: Wait
    _asked: set[tuple[int, signal.Signals]] = field(default_factory=set)

    def ask(self, signum: signal.Signals) -> bool:
        """Pass a request on, once per process; False where nobody is there to ask.

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

    def quiet(self) -> bool:
        """Neither supervisor nor controller is left on this host."""
        return self._leader() is None

    def stop(self, timeout_s: float) -> bool:
        """Ask and wait for the checkpoint; False where somebody is still there when the time is over."""

        def asked_and_over() -> bool:
            # Not TERM, of which a second one ends all at once: another cancel may be under way.
            self.ask(signal.SIGUSR2)
            return self.quiet()

        if self.wait(timeout_s, asked_and_over):
            return True
        # The second TERM, of `end_at_once`, is the one that ends all.
        self.ask(signal.SIGTERM)
        return self.wait(0.1, self.quiet)

    def end_at_once(self) -> Literal["at once", "killed"]:
        """Ask a second time, which ends all at once without a checkpoint; then end what is left by pid."""
        family = self._family()
        supervisor = self._supervisor()
        process = None if supervisor is None else supervisor.process()
        if process is not None:
            _send(process, signal.SIGTERM)
            if self.wait(END_AT_ONCE_S, self.quiet):
                return "at once"
        family += [member for member in self._family() if member not in family]
        for member in family:
            _send(member, signal.SIGKILL)
        self.wait(AFTER_KILL_S, lambda: not any(_alive(member) for member in family))
        return "killed"

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
        problem = f"process {process.pid} of this run belongs to another user"
        raise UserError(problem, hint="only its owner can end the run") from error


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
