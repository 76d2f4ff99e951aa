"""The job of a run on Slurm: asked to stop, taken from the queue, or ended, by the controller only.

A person's request is INT to the batch script, which the supervisor is: it saves, and the job is not requeued.
A second INT ends all at once, so the first is sent by one command only, the one that makes the mark
`stop_asked`. A job that waits is cancelled if it still waits. A suspended one is asked if it goes on in time,
else cancelled. Every wait has a limit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hpcflow.errors import ClusterError
from hpcflow.launch.local_job import END_AT_ONCE_S, Wait
from hpcflow.observe.job import JobRecord, read_supervisor, write_cancelled
from hpcflow.observe.signs import last_attempt
from hpcflow.observe.slurm_ask import PatientAsk
from hpcflow.observe.status import RunStatus
from hpcflow.rundir import AttemptDir, RunDir
from hpcflow.slurm.client import SlurmClient

# Slurm kills what ignores TERM after KillWait, 30 s by default; then nodes may have something to clean up.
AFTER_CANCEL_S = 90.0
# A job that waits is gone from the queue at once; it may just have started, too.
AFTER_DEQUEUE_S = 5.0


@dataclass
class SlurmJob:
    """One job; `status` looks at the run through `patient`, which asks the same cluster as `client`."""

    run: RunDir
    job: JobRecord
    client: SlurmClient
    patient: PatientAsk
    status: Callable[[], RunStatus]
    wait: Wait

    def ask(self, signum: signal.Signals) -> bool:
        """Ask for a checkpoint and an orderly end, once; False where the job is over.

        What signal a local run would get does not matter: here it is always a person who asks.

        Raises:
            ClusterError: Slurm does not answer, or does not take the request.
        """
        status = self._looked()
        if status.over:
            return False
        if self._waits(status):
            self._dequeue()
            return True
        attempt = self._listening(status)
        # Slurm signals no suspended job, and scancel would try for minutes: it is asked when it goes on.
        if attempt is not None and not self._paused(status):
            self._interrupt(attempt)
        return True

    def quiet(self) -> bool:
        """Whether the job is over, and will not come back."""
        look = self.status().slurm
        if look is None or look.answer == "forgotten":
            return True
        return look.answer == "listed" and look.phase == "over" and not look.may_return

    def stop(self, timeout_s: float) -> bool:
        """Ask, and wait for the end of the job; False where it is not over when the time is.

        Raises:
            ClusterError: as of `ask`.
        """

        def asked_and_over() -> bool:
            self.ask(signal.SIGINT)
            return self.quiet()

        return self.wait(timeout_s, asked_and_over)

    def end_at_once(self) -> Literal["at once", "killed"]:
        """Ask a second time, which ends all at once without a checkpoint; then have Slurm kill the job.

        Raises:
            ClusterError: Slurm does not answer, or the job is still there after a while.
        """
        status = self._looked()
        if self._waits(status) and self._dequeue():
            return "at once"
        attempt = self._listening(status)
        if attempt is not None and not self._paused(status):
            self._interrupt(attempt)
            self.client.signal_batch(self.job.job_id, signal.SIGINT)
            self.patient.hurry()
            if self.wait(END_AT_ONCE_S, self.quiet):
                return "at once"
        self.client.cancel(self.job.job_id)
        self.patient.hurry()
        if not self.wait(AFTER_CANCEL_S, self.quiet):
            raise ClusterError(
                f"job {self.job.job_id} is cancelled, but Slurm has not ended it within {AFTER_CANCEL_S:g} s",
                hint=f"see  squeue -j {self.job.job_id}  and  sinfo -R : a node may be stuck",
            )
        return "killed"

    def _looked(self) -> RunStatus:
        """The status, with something known of the job."""
        status = self.status()
        look = status.slurm
        if look is not None and look.unanswered and not look.known:
            raise ClusterError(
                f"{status.name}: {status.reason or 'Slurm did not answer'}",
                hint="nothing was done to the job; try again, or see `scontrol ping`",
            )
        return status

    def _waits(self, status: RunStatus) -> bool:
        return status.slurm is not None and status.slurm.phase in ("held", "queued", "starting")

    def _paused(self, status: RunStatus) -> bool:
        return status.slurm is not None and status.slurm.phase == "paused"

    def _listening(self, status: RunStatus) -> AttemptDir | None:
        """The attempt whose supervisor takes requests; None where it has not begun, or leaves already."""
        attempt = last_attempt(self.run)
        if attempt is None or status.exit is not None or read_supervisor(attempt) is None:
            return None
        return attempt

    def _interrupt(self, attempt: AttemptDir) -> None:
        """Send the first INT, unless another command has."""
        try:
            os.close(os.open(attempt.stop_asked, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        try:
            self.client.signal_batch(self.job.job_id, signal.SIGINT)
        except BaseException:
            attempt.stop_asked.unlink(missing_ok=True)
            raise
        self.patient.hurry()

    def _dequeue(self) -> bool:
        """Cancel the job if it has not begun, and keep that: Slurm forgets it. False where it has begun."""
        status = self.status()
        if status.slurm is not None and status.slurm.phase == "starting":
            # It has its nodes, and nothing on them.
            self.client.cancel(self.job.job_id)
        else:
            self.client.cancel_waiting(self.job.job_id)
        self.patient.hurry()
        if not self.wait(AFTER_DEQUEUE_S, lambda: not self._waits(self.status())):
            return False
        look = self.status().slurm
        if look is None or look.answer != "listed" or look.state != "CANCELLED":
            return False
        write_cancelled(self.run, self.job.job_id)
        return True
