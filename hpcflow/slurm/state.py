"""States of a job in all spellings of squeue and sacct, and what they mean for whoever waits for it.

Slurm adds states and reasons with its releases. An unknown one is kept as Slurm wrote it, and is neither
running nor over nor good: whoever shows it says that it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """What a state means for whoever waits for the job."""

    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    PAUSED = "paused"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class JobState:
    """One state: `name` is Slurm's long name, or the text itself where it is unknown."""

    name: str
    phase: Phase
    meaning: str
    # Passes by itself, and soon.
    transient: bool = False
    # Over for now: Slurm may start the job again under the same id.
    may_return: bool = False
    # Who cancelled it, where Slurm says so.
    by: str = ""

    @property
    def known(self) -> bool:
        """Whether this version of hpcflow knows the state."""
        return self.phase is not Phase.UNKNOWN

    @property
    def active(self) -> bool:
        """Whether the job has nodes now."""
        return self.phase in (Phase.STARTING, Phase.PAUSED, Phase.RUNNING, Phase.ENDING)

    @property
    def waiting(self) -> bool:
        """Whether the job has not started, or is to start again."""
        return self.phase in (Phase.HELD, Phase.QUEUED)

    @property
    def terminal(self) -> bool:
        """Whether the job is over and cannot come back."""
        return self.phase is Phase.OVER and not self.may_return

    @property
    def good(self) -> bool:
        """Whether the job ended well; says nothing good of anything else."""
        return self.name == "COMPLETED"


def _over(name: str, meaning: str, *, may_return: bool = False) -> JobState:
    return JobState(name, Phase.OVER, meaning, transient=may_return, may_return=may_return)


def _soon(name: str, phase: Phase, meaning: str) -> JobState:
    return JobState(name, phase, meaning, transient=True)


_STATES: dict[str, JobState] = {
    "BF": _over("BOOT_FAIL", "a node failed to boot for the job"),
    "CA": _over("CANCELLED", "cancelled"),
    "CD": _over("COMPLETED", "ended with exit code 0"),
    "CF": _soon("CONFIGURING", Phase.STARTING, "has its nodes, which are being made ready"),
    "CG": _soon("COMPLETING", Phase.ENDING, "is over but for some processes or epilogs"),
    "DL": _over("DEADLINE", "ended at its deadline"),
    "F": _over("FAILED", "ended with an exit code that is not 0"),
    "NF": _over("NODE_FAIL", "ended because a node failed"),
    "OOM": _over("OUT_OF_MEMORY", "ended because it took more memory than it asked for"),
    "PD": JobState("PENDING", Phase.QUEUED, "waits for its nodes"),
    "PR": _over("PREEMPTED", "made room for another job; may start again", may_return=True),
    "R": JobState("RUNNING", Phase.RUNNING, "runs"),
    "RD": JobState("RESV_DEL_HOLD", Phase.HELD, "is held: its reservation was deleted"),
    "RF": _soon("REQUEUE_FED", Phase.QUEUED, "is being requeued by a federation"),
    "RH": JobState("REQUEUE_HOLD", Phase.HELD, "was requeued and is held"),
    "RQ": _soon("REQUEUED", Phase.QUEUED, "is being requeued"),
    "RS": _soon("RESIZING", Phase.RUNNING, "runs, and is changing its size"),
    "RV": _over("REVOKED", "was taken from this cluster: another one of the federation has it"),
    "SI": _soon("SIGNALING", Phase.RUNNING, "runs, and is being signalled"),
    "SE": JobState("SPECIAL_EXIT", Phase.HELD, "was requeued in a special state and is held"),
    "SO": _soon("STAGE_OUT", Phase.ENDING, "is over but for the staging of files"),
    "ST": JobState("STOPPED", Phase.PAUSED, "has its nodes, but its processes are stopped"),
    "S": JobState("SUSPENDED", Phase.PAUSED, "is suspended, and its cores are with other jobs"),
    "TO": _over("TIMEOUT", "ended at its time limit"),
}
_NEWER = (
    JobState("EXPEDITING", Phase.QUEUED, "was requeued, and starts before other jobs"),
    _over("LAUNCH_FAILED", "could not be launched on its nodes", may_return=True),
    _soon("POWER_UP_NODE", Phase.STARTING, "has its nodes, which are being powered up"),
    _over("RECONFIG_FAIL", "a node could not be configured for the job", may_return=True),
    _soon("UPDATE_DB", Phase.ENDING, "is being written to the accounting database"),
)
_BY_NAME = {state.name: state for state in (*_STATES.values(), *_NEWER)}
DOCUMENTED = tuple(state.name for state in _STATES.values())

_CANCELLED_BY = re.compile(r"CANCELLED by (\S+)", re.IGNORECASE)

# Of the components of a job, the one that is least far says where the job is.
_LEAST_FAR_FIRST = (
    Phase.UNKNOWN,
    Phase.HELD,
    Phase.QUEUED,
    Phase.STARTING,
    Phase.PAUSED,
    Phase.RUNNING,
    Phase.ENDING,
    Phase.OVER,
)
# Of those that are over, a cause comes before what it led to.
_WORST_FIRST = (
    *(
        "NODE_FAIL",
        "BOOT_FAIL",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "OUT_OF_MEMORY",
        "TIMEOUT",
        "DEADLINE",
        "FAILED",
    ),
    *("PREEMPTED", "REVOKED", "CANCELLED", "COMPLETED"),
)


def parse_state(text: str) -> JobState:
    """A state as squeue or sacct writes it: long, short, cut (`CANCELLED+`), `CANCELLED by 54321`."""
    plain = text.strip()
    if cancelled := _CANCELLED_BY.fullmatch(plain.rstrip("+")):
        return JobState("CANCELLED", Phase.OVER, f"cancelled by user {cancelled[1]}", by=cancelled[1])
    name = plain.upper()
    if name in _STATES:
        return _STATES[name]
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.endswith("+"):
        found = [state for full, state in _BY_NAME.items() if full.startswith(name[:-1])]
        if name[:-1] in _BY_NAME:
            return _BY_NAME[name[:-1]]
        if len(found) == 1:
            return found[0]
    return JobState(plain, Phase.UNKNOWN, "a state that this version of hpcflow does not know")


def overall(states: Sequence[JobState]) -> JobState:
    """State of a whole job by those of its components, of which there is at least one.

    The least advanced component decides, as none works without the others; of components that are all over,
    the worst end. An unknown one makes the whole unknown.
    """
    first = min(states, key=lambda state: _LEAST_FAR_FIRST.index(state.phase))
    if first.phase is not Phase.OVER:
        return first
    return min(states, key=lambda state: _WORST_FIRST.index(state.name))
