"""submitit's SlurmExecutor with our own script, set up for one run.

The login command waits for `sbatch`, at most `SBATCH_LIMIT_S`, and for nothing of the job. Without a clear
answer it looks for the job by the path of its script, which no other submission has, and takes it over; it
never submits a second time. What it gives up is marked as withdrawn: a job that arrives later ends at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from hpcflow.errors import ClusterError, UnclearSubmission
from hpcflow.launch.entry import become_supervisor
from hpcflow.launch.handle import Clock, SystemClock
from hpcflow.observe.job import JobRecord, now_submitted, write_job
from hpcflow.rundir import RunDir
from hpcflow.slurm.client import SlurmClient
from hpcflow.slurm.partitions import Partition
from hpcflow.slurm.refusals import job_id_of, refusal_in

# `sbatch` itself tries again for a minute where the controller does not answer.
SBATCH_LIMIT_S = 120.0
_KILL_AFTER_S = 5
# Exit codes of `timeout`: the limit was reached, the command could not be started, it was ended by a signal.
_TIMED_OUT = 124
_NOT_STARTED = (126, 127)
_BY_SIGNAL = range(129, 129 + 64)
# A request whose answer was lost may be in the queue only after a while.
LOOKS_AFTER_S = (0.0, 1.0, 2.0, 4.0, 8.0)


class _SilentWatcher(SlurmInfoWatcher):  # type: ignore[misc]
    """Asks `sacct` nothing: accounting may be off, and a run's state is in its folder and in the queue."""

    def _make_command(self) -> None:
        return None


class SubmittedJob(SlurmJob):  # type: ignore[misc]
    """submitit's handle, of which only the id is used."""

    watcher: ClassVar[Any] = _SilentWatcher()


class SlurmExecutor(submitit.SlurmExecutor):  # type: ignore[misc]
    """Submits the text that `render` makes of the path of the withdrawal mark.

    `script` is what was handed to `sbatch`, `job_id` its answer; both None before.
    """

    job_class = SubmittedJob

    def __init__(
        self, folder: Path, render: Callable[[Path], str], *, limit_s: float = SBATCH_LIMIT_S
    ) -> None:
        super().__init__(folder)
        self.script: Path | None = None
        self.job_id: str | None = None
        self.withdrawn: Path | None = None
        self._render = render
        self._limit_s = limit_s

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        self.withdrawn = Path(self.folder) / f"withdrawn_{uid}"
        return self._render(self.withdrawn)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        self.script = submission_file_path
        limits = [f"--kill-after={_KILL_AFTER_S}", f"{self._limit_s:g}"]
        return ["timeout", *limits, "sbatch", "--parsable", str(submission_file_path)]

    def _get_job_id_from_submission_command(self, string: str) -> str:
        found = job_id_of(string)
        if found is None:
            raise FailedSubmissionError(f"no job id in what sbatch wrote: {string.strip()[-500:]!r}")
        self.job_id = found
        return found


class Queue(Protocol):
    """What a submission needs of the queue."""

    def find_by_script(self, path: str) -> list[str]:
        """Ids of this user's jobs of this script; raises ClusterError without an answer."""

    def cancel(self, job_id: str) -> object:
        """End a job; raises ClusterError where that cannot be asked."""

    def partitions(self) -> dict[str, Partition]:
        """What may be asked for; raises ClusterError without an answer."""


@dataclass(frozen=True)
class Launched:
    """What `job.json` says; `note` is a sentence about how the job was found, mostly empty."""

    record: JobRecord
    note: str = ""


@dataclass
class Launch:
    """One submission of a run; `environ` is what `sbatch`, the job and the look for it get."""

    run: RunDir
    attempt: int
    render: Callable[[Path], str]
    environ: Mapping[str, str]
    client: Queue = field(default_factory=SlurmClient)
    clock: Clock = field(default_factory=SystemClock)
    limit_s: float = SBATCH_LIMIT_S

    def __call__(self) -> Launched:
        """Submit, and publish `job.json`.

        Raises:
            ClusterError: Slurm refused, or nobody can tell whether it took the job; nothing will run.
        """
        self.run.submitit.mkdir(exist_ok=True)
        executor = SlurmExecutor(self.run.submitit, self.render, limit_s=self.limit_s)
        with _environment(self.environ):
            try:
                note = self._submit(executor)
                record = self._publish(executor)
            except BaseException as error:
                _withdraw(executor)
                if executor.job_id is not None:
                    self._cancel(executor.job_id, error)
                raise
        return Launched(record, note)

    def _submit(self, executor: SlurmExecutor) -> str:
        """Hand the job over; returns the note."""
        silence = io.StringIO()  # submitit prints what sbatch complained of, which the error shows
        try:
            with contextlib.redirect_stderr(silence):
                executor.submit(become_supervisor, str(self.run.path))
        except FileNotFoundError as error:
            hint = "submitting takes `timeout` (of coreutils) and `sbatch` on PATH"
            raise ClusterError(f"{error.filename} cannot be found: {error.strerror}", hint=hint) from error
        except FailedSubmissionError as error:
            return self._adopt(executor, str(error))
        except FailedJobError as error:
            failed = error.__cause__
            if not isinstance(failed, subprocess.CalledProcessError):
                raise
            complaint = _complaint(failed, self.limit_s)
            if failed.returncode in _NOT_STARTED:
                hint = "is the sbatch on PATH a program that you may run?"
                raise ClusterError(f"sbatch cannot be started:\n{complaint}", hint=hint) from error
            if refusal_in(complaint) is not None:
                raise ClusterError(
                    f"Slurm refused the job:\n{complaint}", hint=self._advice(complaint)
                ) from error
            return self._adopt(executor, complaint)
        return ""

    def _advice(self, complaint: str) -> str:
        """What to change, with the values that this cluster takes."""
        try:
            refusal = refusal_in(complaint, self.client.partitions())
        except ClusterError:
            refusal = refusal_in(complaint)
        return "" if refusal is None else refusal.hint

    def _adopt(self, executor: SlurmExecutor, complaint: str) -> str:
        """Take over the job of an unclear answer."""
        assert executor.script is not None
        found = self._look_for(str(executor.script), complaint)
        if len(found) > 1:
            raise UnclearSubmission(
                f"one submission has become {len(found)} jobs: {', '.join(found)}\n{complaint}",
                hint=f"they end by themselves once they start; or  scancel {' '.join(found)}",
            )
        (executor.job_id,) = found
        return (
            f"sbatch gave no clear answer ({complaint.splitlines()[0]}), but job {executor.job_id} is there"
        )

    def _look_for(self, script: str, complaint: str) -> list[str]:
        trouble = ""
        for wait_s in LOOKS_AFTER_S:
            self.clock.wait(wait_s)
            try:
                found = self.client.find_by_script(script)
            except ClusterError as error:
                trouble = f"\nthe queue could not be looked at: {error.message}"
                continue
            trouble = ""
            if found:
                return found
        raise UnclearSubmission(
            f"nobody can tell whether Slurm took the job, and it is not in the queue:\n{complaint}{trouble}",
            hint="look with  squeue --me  before you submit again; a job that still arrives ends at once",
        )

    def _cancel(self, job_id: str, error: BaseException) -> None:
        """A job that nobody can find again must not run."""
        try:
            self.client.cancel(job_id)
        except ClusterError as refused:
            problem = (
                f"job {job_id} was submitted, but: {error}\nand it could not be cancelled: {refused.message}"
            )
            raise ClusterError(problem, hint=f"scancel {job_id}") from error

    def _publish(self, executor: SlurmExecutor) -> JobRecord:
        assert executor.job_id is not None
        record = JobRecord(
            executor="slurm",
            job_id=executor.job_id,
            submitted=now_submitted(),
            attempt=self.attempt,
            slurm_conf=self.environ.get("SLURM_CONF"),
        )
        write_job(self.run, record)
        return record


def _withdraw(executor: SlurmExecutor) -> None:
    """Mark what was given up; best effort, as the error's text tells of a late job, too."""
    if executor.withdrawn is not None:
        with contextlib.suppress(OSError):
            executor.withdrawn.touch()


def _complaint(failed: subprocess.CalledProcessError, limit_s: float) -> str:
    """What sbatch wrote, or how it ended."""
    said = "\n".join(filter(None, (str(failed.stderr or "").strip(), str(failed.output or "").strip())))
    if failed.returncode == _TIMED_OUT:
        return f"sbatch did not answer within {limit_s:g} s\n{said}".strip()
    if failed.returncode < 0 or failed.returncode in _BY_SIGNAL:
        signum = abs(failed.returncode) % 128
        return f"sbatch was ended by signal {signum}\n{said}".strip()
    return said or f"sbatch ended with exit code {failed.returncode} and wrote nothing"


@contextlib.contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    """This process's own environment, for a while: submitit passes on no other."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
