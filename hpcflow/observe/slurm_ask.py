"""Asks the controller about a run's job: one query, whatever the number of nodes and roles.

`ask_slurm` asks once; a `PatientAsk` is for those who look again and again, and asks seldom. Never raises for
a controller that does not answer, never takes that for an end, and never asks `sacct`, which may be off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec

from hpcflow.errors import ClusterError
from hpcflow.observe.job import JobRecord
from hpcflow.observe.slurm_look import ComponentLook, SlurmLook
from hpcflow.slurm.client import ListedJob, SlurmClient, Unlisted
from hpcflow.slurm.reasons import explain

# Gaps between two questions of a follower: the first after news from the run's files, and the longest.
FIRST_GAP_S = 1.0
LONGEST_GAP_S = 10.0


class News(NamedTuple):
    """What the run's files say: another value is a reason to ask again soon."""

    attempt: int
    reported: bool


Ask = Callable[[JobRecord, News], SlurmLook]


def ask_slurm(job: JobRecord, news: News) -> SlurmLook:
    """Ask the cluster that the run was submitted to."""
    return ask_client(SlurmClient.of_cluster(job.slurm_conf), job.job_id, time.time())


def ask_client(client: SlurmClient, job_id: str, now: float) -> SlurmLook:
    """One question; what goes wrong with it is an answer, too."""
    try:
        found = client.job(job_id)
    except ClusterError as error:
        return SlurmLook(answer="silent", asked=now, message=error.message)
    if found is None:
        return SlurmLook(answer="empty", asked=now)
    if isinstance(found, Unlisted):
        return SlurmLook(answer="forgotten", asked=now, message=found.message)
    return _look(found, now)


def _look(job: ListedJob, now: float) -> SlurmLook:
    state = job.state
    starts = [_seconds(component.start) for component in job.components]
    look = SlurmLook(
        answer="listed",
        asked=now,
        phase=state.phase.value,
        state=state.name,
        reason=job.reason,
        meaning=state.meaning,
        may_return=state.may_return,
        # The job starts when the last component can.
        start=None if None in starts else max(start for start in starts if start is not None),
        components=tuple(
            ComponentLook(
                job_id=component.job_id,
                state=component.state.name,
                reason=component.reason,
                nodes=component.nodelist,
                node_count=component.node_count,
            )
            for component in job.components
        ),
    )
    if state.waiting and any(component.state == "CANCELLED" for component in look.components):
        return _crippled(look, job.job_id)
    return _explained(look, job.job_id) if state.waiting else look


def _crippled(look: SlurmLook, job_id: str) -> SlurmLook:
    """A heterogeneous job of which somebody cancelled a component, and that Slurm has requeued without it."""
    cancelled = [number for number, one in enumerate(look.components) if one.state == "CANCELLED"]
    return msgspec.structs.replace(
        look,
        meaning=f"it can never start: its component {cancelled[0]} was cancelled, which Slurm does not undo",
        advice=f"`scancel {job_id}`, then resume the run",
        stuck=True,
    )


def _explained(look: SlurmLook, job_id: str) -> SlurmLook:
    """With what the reason of a job that waits means; a reason that nobody here knows is shown as it is."""
    why = explain(look.reason, job_id)
    if why is not None:
        return msgspec.structs.replace(look, meaning=why.sentence, advice=why.advice, stuck=why.stuck)
    held = look.phase == "held"
    return msgspec.structs.replace(
        look,
        meaning=f"{look.meaning} ({look.reason})" if look.reason else look.meaning,
        advice=f"`scontrol release {job_id}`" if held else "",
        stuck=held,
    )


def _seconds(local_time: str) -> float | None:
    """`2026-12-01T13:28:31` of the cluster's time zone, taken to be this machine's."""
    try:
        return datetime.fromisoformat(local_time).timestamp()
    except ValueError:
        return None


@dataclass
class PatientAsk:
    """Asks at once after news, then after 1, 2, 4, 8 s, then every 10 s; the last answer holds meanwhile."""

    ask: Ask
    clock: Callable[[], float] = time.time
    _last: SlurmLook | None = None
    _about: tuple[str, News] | None = None
    _next: float = 0.0
    _gap_s: float = FIRST_GAP_S

    def __call__(self, job: JobRecord, news: News) -> SlurmLook:
        """The newest answer, asked for now or before."""
        now = self.clock()
        if self._about != (job.job_id, news):
            if self._about is not None and self._about[0] != job.job_id:
                self._last = None
            self._about = (job.job_id, news)
            self.hurry()
        # A clock that was put back must not silence the questions.
        if self._last is None or not self._next - LONGEST_GAP_S <= now < self._next:
            self._last = _merged(self._last, self.ask(job, news))
            self._next = self.clock() + self._gap_s
            self._gap_s = min(2 * self._gap_s, LONGEST_GAP_S)
        return self._last

    def hurry(self) -> None:
        """Something was done to the job: ask again at the next look."""
        self._next, self._gap_s = 0.0, FIRST_GAP_S


def _merged(before: SlurmLook | None, now: SlurmLook) -> SlurmLook:
    """Without an answer, what was known stays known, with its age."""
    if before is None or not now.unanswered:
        return now
    return msgspec.structs.replace(before, answer=now.answer, message=now.message)
