"""The exception tree; each class carries a hint and the exit code of `hpcflow`.

    HpcflowError
    |-- UserError            2   spec, data, flags or environment: found before submission
    |   |-- SpecError            one fault at one place of the spec
    |   |-- SpecErrors           all faults of one spec
    |   |-- DataError            a data file, with its line
    |   `-- RunDirError          the run folder holds another run, or is no run folder
    |-- ClusterError         4   Slurm or the cluster refused or did not answer
    |   `-- UnclearSubmission    nobody can tell whether the cluster took a job
    `-- JobFault             3   inside the job: carries cause, role and rank
        |-- RpcError             a call failed or timed out
        `-- FirstStepFault       spec or data fault that only the job's first step can find

Never used for our own bugs: those are `assert`.
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_OK = 0
EXIT_USER = 2
EXIT_FAILED = 3
EXIT_CLUSTER = 4
EXIT_REQUEUE = 75
EXIT_INTERRUPTED = 130


class HpcflowError(Exception):
    """What was wrong, and in `hint` what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UserError(HpcflowError):
    """The user's spec, data, flags or environment; nothing was submitted."""

    exit_code = EXIT_USER


class SpecError(UserError):
    """One fault of a spec: `place` is `file:line key`, `value` as the user wrote it."""

    def __init__(self, place: str, problem: str, *, value: str = "", hint: str = "") -> None:
        shown = f" (got {value})" if value else ""
        super().__init__(f"{place}: {problem}{shown}", hint=hint)
        self.place = place


class SpecErrors(UserError):
    """All faults of one spec, so that a user mends them in one go."""

    def __init__(self, faults: Sequence[SpecError]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class DataError(UserError):
    """A data file that cannot be used; `place` is `file:line`."""

    def __init__(self, place: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{place}: {problem}", hint=hint)
        self.place = place


class RunDirError(UserError):
    """A folder that is no run folder, or holds another run."""


class ClusterError(HpcflowError):
    """Slurm or the cluster refused or did not answer."""

    exit_code = EXIT_CLUSTER


class UnclearSubmission(ClusterError):
    """The cluster may have taken the job, or may do so later: nothing that stops it then may be removed."""


class JobFault(HpcflowError):
    """A fault inside the job, to be written into the exit report.

    `cause` is one of `observe.exit_report.CAUSES`; rank -1 means the whole role.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, cause: str, role: str, rank: int = -1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cause = cause
        self.role = role
        self.rank = rank


class RpcError(JobFault):
    """A call to a rank failed (cause `role_error`) or timed out (cause `rpc_timeout`)."""


class FirstStepFault(JobFault):
    """A fault of spec or data found by the job's first step (cause `spec` or `data`)."""
