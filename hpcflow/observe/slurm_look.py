"""What Slurm says of a run's job, as one value: what was asked, what was answered, and when.

No answer and an empty answer are values as well, and neither is ever taken for the job's end. Never asks by
itself: `slurm_ask` does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# `forgotten`: Slurm says that it knows no such job. `empty`: it answered, and named no job.
Answer = Literal["listed", "forgotten", "empty", "silent"]

# What a job does, whatever Slurm's version calls it: `slurm.state.Phase` by value.
Phase = Literal["held", "queued", "starting", "paused", "running", "ending", "over", "unknown"]


class ComponentLook(msgspec.Struct, frozen=True, kw_only=True):
    """One component of a heterogeneous job, or the whole of another: Slurm's own words.

    `job_id` is the component's own; `nodes` is a node list, empty before the start.
    """

    job_id: str
    state: str
    reason: str
    nodes: str
    node_count: int


class SlurmLook(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the controller about one job.

    After `empty` and `silent` all but `answer`, `message` is what was known before, of time `asked`.
    `state` and `reason` are Slurm's words, empty where it said nothing; `meaning` says in plain words what
    they mean, `advice` what to do. `stuck`: it does not start unless somebody does that. `may_return`: it is
    over for now, and Slurm may start it again. `start` is when the job began, or when Slurm expects it to
    begin, None where that is not told; times are in seconds since the epoch.
    """

    answer: Answer
    asked: float
    message: str = ""
    phase: Phase = "unknown"
    state: str = ""
    reason: str = ""
    meaning: str = ""
    advice: str = ""
    stuck: bool = False
    may_return: bool = False
    start: float | None = None
    components: tuple[ComponentLook, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it tells of the job, now or from before."""
        return bool(self.components)

    @property
    def unanswered(self) -> bool:
        """Whether this time nothing was told of the job."""
        return self.answer in ("empty", "silent")

    @property
    def waits(self) -> bool:
        """Whether the job, as far as known, has not started, or is to start again."""
        return self.phase in ("held", "queued")

    @property
    def nodes(self) -> str:
        """All nodes of the job, as Slurm lists them."""
        return ",".join(component.nodes for component in self.components if component.nodes)


class StepPlace(msgspec.Struct, frozen=True):
    """Where a job step is; `nodes` is a node list in short form, empty where it is not known."""

    name: str
    roles: tuple[str, ...]
    node_count: int
    nodes: str
