"""`hpcflow logs`: the logs of one attempt, merged, each line with its role and rank.

With `--follow` it polls the files until the run is over; the run never waits for it.
"""

from __future__ import annotations

from hpcflow.errors import UserError
from hpcflow.launch import runs
from hpcflow.launch.handle import Clock, SystemClock
from hpcflow.observe.logs import LogReader, log_files, submission_tail
from hpcflow.observe.status import read_status
from hpcflow.rundir import AttemptDir, RunDir

POLL_S = 0.3


def logs(name: str, *, role: str | None, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Print the logs.

    Raises:
        UserError: there is no such run, attempt, role or rank.
    """
    run = runs.find(name)
    chosen = _attempt(run, attempt, SystemClock() if follow else None)
    if chosen is None:
        print("\n".join(submission_tail(run)))
        return
    if not follow and not log_files(chosen, role=role, rank=rank):
        written = ", ".join(f"{file.role}.{file.rank}" for file in log_files(chosen))
        raise UserError(
            f"attempt {chosen.number} of {run.name} has no such log",
            hint=f"there are: {written or 'none yet'}",
        )
    _print(run, chosen, LogReader(chosen, role=role, rank=rank), SystemClock() if follow else None)


def _print(run: RunDir, attempt: AttemptDir, reader: LogReader, clock: Clock | None) -> None:
    """Once, or until the attempt is over where a clock is given."""
    while True:
        latest = run.attempts()[-1].number == attempt.number
        over = clock is None or not latest or not read_status(run).active
        for line in reader.new_lines(final=over):
            print(f"{line.role}.{line.rank} | {line.text}", flush=clock is not None)
        if over:
            return
        assert clock is not None
        clock.wait(POLL_S)


def _attempt(run: RunDir, number: int | None, clock: Clock | None) -> AttemptDir | None:
    """The attempt asked for, or the last; waits for the first one where a clock is given."""
    while clock is not None and not run.attempts() and read_status(run).active:
        clock.wait(POLL_S)
    attempts = run.attempts()
    if number is None:
        return attempts[-1] if attempts else None
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    there = ", ".join(str(attempt.number) for attempt in attempts) or "none yet"
    raise UserError(f"{run.name} has no attempt {number}", hint=f"attempts: {there}")
