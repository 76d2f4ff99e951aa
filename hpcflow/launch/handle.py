"""A handle on a submitted run, from any terminal: ask it to stop, end it, wait until it is over.

Goes by the run folder: by pids on this host (`local_job`), or by Slurm's controller (`slurm_job`). Every wait
has a limit. Looks again and again cost Slurm a question every 10 s at most, or sooner where the run's files
have news.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from hpcflow.launch.local_job import LocalJob
from hpcflow.launch.slurm_job import SlurmJob
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.observe.slurm_ask import News, PatientAsk, ask_client
from hpcflow.observe.slurm_look import SlurmLook
from hpcflow.observe.status import RunStatus, read_status
from hpcflow.rundir import RunDir
from hpcflow.slurm.client import SlurmClient

POLL_S = 0.1
# Files of a job elsewhere are on a shared disk.
SLURM_POLL_S = 0.5


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
    """One submitted run; `connect` makes the client of the cluster that a SLURM_CONF selects."""

    run: RunDir
    clock: Clock = field(default_factory=SystemClock)
    connect: Callable[[str | None], SlurmClient] = SlurmClient.of_cluster
    _patient: PatientAsk = field(init=False)
    _jobs: dict[str, LocalJob | SlurmJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._patient = PatientAsk(self._ask, self.clock.now)

    def status(self) -> RunStatus:
        """Look once; Slurm is asked if it has not been asked just now."""
        return read_status(self.run, clock=self.clock.now, ask=self._patient)

    def ask_to_stop(self, signum: signal.Signals = signal.SIGTERM) -> bool:
        """Ask for a checkpoint and an orderly end, once; False where nobody was there to ask.

        A local run gets `signum`; before its supervisor has said who it is, the controller is asked, which
        passes TERM on. Call again until the run is over: a supervisor that has only just begun is asked then.
        A job that waits in Slurm's queue is cancelled.

        Raises:
            UserError: a local run is on another host.
            ClusterError: Slurm does not answer.
        """
        return self._job().ask(signum)

    def end_at_once(self) -> Ending:
        """Ask a second time, which ends all at once without a checkpoint; then end what is left.

        Raises:
            UserError: a local run is on another host.
            ClusterError: Slurm does not answer, or does not end the job.
        """
        return Ending(self._job().end_at_once(), self.status())

    def cancel(self, timeout_s: float) -> Ending:
        """End the run: ask, wait at most `timeout_s` for its checkpoint, then end it at once.

        Raises:
            UserError: a local run is on another host.
            ClusterError: Slurm does not answer, or does not end the job.
        """
        job = self._job()
        if not self.status().active and job.quiet():
            return Ending("over already", self.status())
        if job.stop(timeout_s):
            return Ending("asked", self.status())
        return self.end_at_once()

    def _job(self) -> LocalJob | SlurmJob:
        """What the newest submission became; the same object as long as that is the newest."""
        record = read_job(self.run)
        key = "" if record is None else f"{record.executor} {record.job_id}"
        if key not in self._jobs:
            self._jobs[key] = self._open(record)
        return self._jobs[key]

    def _open(self, record: JobRecord | None) -> LocalJob | SlurmJob:
        if record is None or record.executor == "local":
            return LocalJob(self.run, partial(self._wait, POLL_S))
        client = self.connect(record.slurm_conf)
        wait = partial(self._wait, SLURM_POLL_S)
        return SlurmJob(self.run, record, client, self._patient, self.status, wait)

    def _ask(self, record: JobRecord, news: News) -> SlurmLook:
        return ask_client(self.connect(record.slurm_conf), record.job_id, self.clock.now())

    def _wait(self, poll_s: float, timeout_s: float, done: Callable[[], bool]) -> bool:
        deadline = self.clock.now() + timeout_s
        while not done():
            if self.clock.now() >= deadline:
                return False
            self.clock.wait(poll_s)
        return True
