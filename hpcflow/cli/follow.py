"""`--follow`: watch a run until it is over; the terminal's Ctrl-C becomes requests to the run.

A loop over looks at files, with few questions to Slurm: it waits for the run by polling, and the run never
waits for it. Goes on with the attempt that Slurm starts after a requeue. First Ctrl-C: ask for a checkpoint
and an orderly end. Second: end at once. TERM or hang-up: leave, the run goes on.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass, field

from hpcflow.cli import screens
from hpcflow.cli.interrupts import Interrupts
from hpcflow.cli.views import View
from hpcflow.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from hpcflow.launch.handle import Clock, JobHandle, SystemClock
from hpcflow.observe.logs import submission_tail
from hpcflow.observe.metrics import MetricsReader, Row
from hpcflow.observe.readiness import not_ready
from hpcflow.observe.signs import last_attempt
from hpcflow.observe.status import RunStatus

POLL_S = 0.5


@dataclass
class Follower:
    """Follows one submission, of which `attempt` is the first; `run` returns the exit code of the command."""

    handle: JobHandle
    attempt: int
    view: View
    interrupts: Interrupts
    clock: Clock = field(default_factory=SystemClock)

    def run(self) -> int:
        """Until the run is over, was ended here, or the follower was told to leave."""
        reader = MetricsReader(self.handle.run.metrics_jsonl)
        rows: list[Row] = []
        asked = False
        while True:
            # Rows are read after the status: whatever was written before the end is then shown.
            status = self.handle.status()
            self._read(reader, rows, status)
            waiting = not_ready(self.handle.run) if status.state == "starting" else []
            self.view.progress(status, rows, waiting)
            if status.over:
                break
            if self.interrupts.leave:
                self.view.close(status)
                self.view.line(f"the run goes on:  hpcflow status {self._name(status)}")
                return EXIT_INTERRUPTED
            if self.interrupts.presses > 1:
                self.view.line("ending at once")
                status = self.handle.end_at_once().status
                break
            if self.interrupts.presses:
                if not asked:
                    self.view.line(_asking(status))
                asked = True
                self.handle.ask_to_stop(signal.SIGINT)
            self.clock.wait(POLL_S)
        self._read(reader, rows, status)
        self.view.close(status)
        return self._ended(status)

    def _read(self, reader: MetricsReader, rows: list[Row], status: RunStatus) -> None:
        for row in reader.new_rows():
            if row["attempt"] < self.attempt:
                continue
            if rows and row["attempt"] > rows[-1]["attempt"]:
                rows.clear()  # the job was requeued: the rate of the attempt before says nothing now
            if row["kind"] == "train":
                rows.append(row)
            self.view.row(row, status.steps)

    def _ended(self, status: RunStatus) -> int:
        self.view.line("\n".join(ending_lines(status, self._tail(status))))
        if self.interrupts.presses and status.state in ("stopped", "lost"):
            return EXIT_INTERRUPTED
        codes = {"done": EXIT_OK, "stopped": EXIT_INTERRUPTED}
        return codes.get(status.state, EXIT_FAILED)

    def _tail(self, status: RunStatus) -> list[str]:
        if status.exit is not None:
            return list(status.exit.tail)
        return submission_tail(self.handle.run) if last_attempt(self.handle.run) is None else []

    def _name(self, status: RunStatus) -> str:
        return quoted(status.path)


def _asking(status: RunStatus) -> str:
    if status.state == "queued" and status.executor == "slurm":
        return "cancelling the job, which waits in the queue"
    return "saving a checkpoint; press again to end at once"


def ending_lines(status: RunStatus, tail: list[str]) -> list[str]:
    """The last words on a run: how it ended, the scores, what can be done now."""
    steps = "" if status.steps is None else f" at step {status.step} of {status.steps}"
    lines = [f"{status.name}: {status.state}{steps}" + (f", {status.reason}" if status.reason else "")]
    if status.exit is not None:
        lines += screens.exit_lines(status.exit)
    if status.state in ("failed", "lost"):
        lines += [f"  | {line}" for line in tail]
    if held_out := screens.heldout_line(status):
        lines.append(f"held-out score: {held_out}")
    if status.checkpoint_step is not None:
        lines.append(f"checkpoint of step {status.checkpoint_step}")
    if status.state != "done":
        lines.append(f"go on with:  hpcflow resume {quoted(status.path)}")
    lines.append(f"run folder: {status.path}")
    return lines


def quoted(path: str) -> str:
    """A path as a shell would read it."""
    return shlex.quote(path)
