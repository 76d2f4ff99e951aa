"""`hpcflow logs`: the logs of an attempt, or of all, merged, each line with attempt, role and rank.

With `--follow` it polls the files until the run is over, and goes on with the attempt that Slurm starts after
a requeue; the run never waits for it.
"""

from __future__ import annotations

from hpcflow.errors import UserError
from hpcflow.launch import runs
from hpcflow.launch.handle import Clock, JobHandle, SystemClock
from hpcflow.observe.logs import BATCH, Chosen, LogFile, LogReader, batch_log, log_files, submission_tail
from hpcflow.rundir import AttemptDir, RunDir

POLL_S = 0.3
ALL = "all"


def logs(name: str, *, role: str | None, rank: int | None, attempt: str | None, follow: bool) -> None:
    """Print the logs; `attempt` is a number, `all`, or None for the last.

    Raises:
        UserError: there is no such run, attempt, role or rank.
    """
    run = runs.find(name)
    selection = _Selection(run, Chosen(role, rank), attempt)
    clock = SystemClock() if follow else None
    if clock is not None:
        _until_begun(JobHandle(run, clock), clock)
    selection.begin()
    if not run.attempts() and not follow:
        print("\n".join(submission_tail(run)))
        return
    if not follow and not selection.files():
        written = ", ".join(file.name for file in selection.all_files())
        raise UserError(
            f"attempt {selection.shown} of {run.name} has no such log",
            hint=f"there are: {written or 'none yet'}",
        )
    _print(run, selection, clock)


class _Selection:
    """The logs that were asked for, those that appear later included."""

    def __init__(self, run: RunDir, chosen: Chosen, attempt: str | None) -> None:
        self._run = run
        self._chosen = chosen
        self._wanted = attempt
        self._first = 1

    @property
    def shown(self) -> str:
        """The attempt as it was asked for."""
        return str(self._first) if self._wanted is None else self._wanted

    @property
    def goes_on(self) -> bool:
        """Whether a later attempt belongs to it."""
        return self._wanted in (None, ALL)

    def begin(self) -> None:
        """Settle which attempt is the last, or whether the one asked for is there.

        Raises:
            UserError: it is not there.
        """
        numbers = [attempt.number for attempt in self._run.attempts()]
        if self._wanted is None:
            self._first = numbers[-1] if numbers else 1
        elif self._wanted != ALL and self._wanted not in map(str, numbers):
            there = ", ".join(map(str, numbers)) or "none yet"
            hint = f"attempts: {there}; or `all`"
            raise UserError(f"{self._run.name} has no attempt {self._wanted}", hint=hint)

    def files(self) -> list[LogFile]:
        """The logs that exist by now."""
        return [*log_files(self._attempts(), self._chosen), *self._batch(self._chosen)]

    def all_files(self) -> list[LogFile]:
        """The same, of all roles and ranks."""
        return [*log_files(self._attempts()), *self._batch(None)]

    def _attempts(self) -> list[AttemptDir]:
        if self.goes_on:
            return [attempt for attempt in self._run.attempts() if attempt.number >= self._first]
        return [attempt for attempt in self._run.attempts() if str(attempt.number) == self._wanted]

    def _batch(self, chosen: Chosen | None) -> list[LogFile]:
        """The batch script's log belongs to no single attempt: not to one that was asked for by number."""
        whole = self.goes_on or self._chosen.role == BATCH
        return batch_log(self._run, chosen) if whole else []


def _print(run: RunDir, selection: _Selection, clock: Clock | None) -> None:
    """Once, or until the run is over where a clock is given; of a past attempt, once."""
    reader = LogReader()
    handle = None if clock is None else JobHandle(run, clock)
    while True:
        past = not selection.goes_on and str(run.attempts()[-1].number) != selection.shown
        over = handle is None or past or not handle.status().active
        for line in reader.new_lines(selection.files(), final=over):
            print(f"{line.file.source} | {line.text}", flush=clock is not None)
        if over or clock is None:
            return
        clock.wait(POLL_S)


def _until_begun(handle: JobHandle, clock: Clock) -> None:
    """Wait for the first attempt of a run that is still to start."""
    while not handle.run.attempts() and handle.status().active:
        clock.wait(POLL_S)
