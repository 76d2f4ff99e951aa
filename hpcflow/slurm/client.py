"""Asks the controller, and has it signal or cancel a job: one command a question, however large the job.

Never caches, never retries, never asks accounting, which many sites have not. Every call has a time-out; what
is no clear answer raises `ClusterError` with Slurm's own words. No `--json`, whose shape moves between
releases, and only format fields that Slurm 20.11 has.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from hpcflow.errors import ClusterError
from hpcflow.slurm.commands import WRAPPED, CommandResult, Run, query_environment, run_here, run_in
from hpcflow.slurm.nodes import expand
from hpcflow.slurm.partitions import COMMAND, Partition, parse_partitions
from hpcflow.slurm.state import JobState, overall, parse_state

# The reason is free text, so it is last.
_JOB_FORMAT = "%i|%A|%T|%D|%S|%N|%r"
_SCRIPT_FORMAT = "%i|%o"
_ID = re.compile(r"([0-9]+)(?:[+_.].*)?")
_COMPONENT = re.compile(r"[0-9]+\+([0-9]+)")
# How Slurm says that it knows no job of this id (any more).
_NO_SUCH_JOB = re.compile(r"Invalid job id\b", re.IGNORECASE)
_IS_OVER = re.compile(r"already completing or completed|Invalid job id specified", re.IGNORECASE)
_A_CONTROLLER_IS_UP = re.compile(r"\bis UP\b|\bare (?:UP/|[A-Z]+/UP\b)")
_NO_TIME = frozenset({"N/A", "Unknown", "NONE", ""})


@dataclass(frozen=True)
class Component:
    """One component of a job; a plain job has one.

    `start` is when it started, or will by Slurm's estimate (local time of the cluster), empty if not known.
    """

    job_id: str
    state: JobState
    reason: str
    nodelist: str
    start: str
    node_count: int

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes, in Slurm's order; none while it waits."""
        return tuple(expand(self.nodelist))


@dataclass(frozen=True)
class ListedJob:
    """What the controller says of a job; `job_id` is the leader's, components are in their order."""

    job_id: str
    components: tuple[Component, ...]

    @property
    def state(self) -> JobState:
        """Of the whole job: see `state.overall`."""
        return overall([component.state for component in self.components])

    @property
    def reason(self) -> str:
        """Why the component that decides the state waits or ended; empty where Slurm gives none."""
        decides = self.state
        reasons = [component.reason for component in self.components if component.state == decides]
        return next((reason for reason in reasons if reason not in ("None", "")), "")


@dataclass(frozen=True)
class Unlisted:
    """The controller knows no such job (any more): it was purged some minutes after its end, or never was."""

    message: str


class Delivery(Enum):
    """What became of a signal or a cancellation."""

    SENT = "sent"
    OVER = "the job is over"
    NOT_STARTED = "the job has not started"


@dataclass(frozen=True)
class SlurmClient:
    """Slurm's commands. `run` runs one of them with a time-out in seconds."""

    run: Run = run_here
    timeout_s: float = 20.0

    @staticmethod
    def of_cluster(slurm_conf: str | None, *, timeout_s: float = 20.0) -> SlurmClient:
        """Of the cluster that this SLURM_CONF selects; None: of the one without it, Slurm's default."""
        environ = query_environment(os.environ)
        environ.pop("SLURM_CONF", None)
        if slurm_conf is not None:
            environ["SLURM_CONF"] = slurm_conf
        return SlurmClient(run_in(environ), timeout_s)

    def controller_answers(self) -> bool:
        """Whether the primary controller or a backup is up.

        Raises:
            ClusterError: there is no `scontrol` here.
        """
        answer = self.run(["scontrol", "ping"], self.timeout_s)
        return _A_CONTROLLER_IS_UP.search(answer.stdout) is not None

    def job(self, job_id: str) -> ListedJob | Unlisted | None:
        """A job with all its components, by one call of squeue.

        None means that squeue listed nothing, which is no proof that the job is gone.

        Raises:
            ClusterError: no clear answer.
        """
        leader = leader_of(job_id)
        argv = ["squeue", "--noheader", "--jobs", leader, "--states", "all", "--format", _JOB_FORMAT]
        answer = self.run(argv, self.timeout_s)
        if answer.code != 0:
            if answer.code is not None and _NO_SUCH_JOB.search(answer.stderr):
                return Unlisted(answer.stderr.strip())
            raise self._no_answer("squeue", answer)
        components = dict(_component(line) for line in _lines(answer))
        in_order = tuple(components[offset] for offset in sorted(components))
        return ListedJob(leader, in_order) if in_order else None

    def find_by_script(self, path: Path | str) -> list[str]:
        """Ids of this user's jobs whose batch script is `path`, which is absolute; oldest first.

        Of a hetjob it is the leader's.

        Raises:
            ClusterError: no clear answer.
        """
        argv = [
            "squeue",
            "--noheader",
            "--user",
            str(os.getuid()),
            "--states",
            "all",
            "--format",
            _SCRIPT_FORMAT,
        ]
        answer = self.run(argv, self.timeout_s)
        if answer.code != 0:
            raise self._no_answer("squeue", answer)
        found = set()
        for line in _lines(answer):
            listed, _, command = line.partition("|")
            # Arguments of the script follow its path.
            if f"{command.rstrip()} ".startswith(f"{path} "):
                found.add(int(leader_of(listed)))
        return [str(job) for job in sorted(found)]

    def cancel(self, job_id: str) -> Delivery:
        """End a job, all its components and processes, or take it from the queue.

        Raises:
            ClusterError: no clear answer, or not allowed.
        """
        return self._scancel([leader_of(job_id)])

    def cancel_waiting(self, job_id: str) -> Delivery:
        """Take a job from the queue; one that has started meanwhile goes on, which is not told.

        Raises:
            ClusterError: no clear answer, or not allowed.
        """
        return self._scancel(["--state=PENDING", leader_of(job_id)])

    def signal_batch(self, job_id: str, which: signal.Signals) -> Delivery:
        """Send a signal to the batch script (of a hetjob: of its first component), not to the steps.

        Raises:
            ClusterError: no clear answer, or not allowed.
        """
        record = self.job(job_id)
        if isinstance(record, Unlisted):
            return Delivery.OVER
        # scancel tries for minutes to signal a job that waits.
        if record is not None and record.state.waiting:
            return Delivery.NOT_STARTED
        name = which.name.removeprefix("SIG")
        return self._scancel(["--batch", f"--signal={name}", leader_of(job_id)])

    def partitions(self) -> dict[str, Partition]:
        """All partitions by name, by one call of sinfo.

        Raises:
            ClusterError: no clear answer.
        """
        answer = self.run(COMMAND, self.timeout_s)
        if answer.code != 0:
            raise self._no_answer("sinfo", answer)
        return parse_partitions(answer.stdout)

    def node_address(self, node: str) -> str:
        """The address of a node, as the controller knows it: a name or a number.

        Raises:
            ClusterError: no clear answer, or no such node.
        """
        answer = self.run(["scontrol", "show", "node", "--oneliner", node], self.timeout_s)
        match = re.search(r"(?:^|\s)NodeAddr=(\S+)", answer.stdout)
        if answer.code != 0 or match is None:
            problem = f"Slurm does not tell the address of node {node}"
            hint = f"see `scontrol show node {node}`; with communication.interface it is not asked"
            raise ClusterError(f"{problem}: {_said(answer, self.timeout_s)}", hint=hint)
        return match[1]

    def _scancel(self, arguments: list[str]) -> Delivery:
        answer = self.run(["scancel", *arguments], self.timeout_s)
        # Some versions say it and end with 0.
        if answer.code is not None and _IS_OVER.search(answer.stderr):
            return Delivery.OVER
        if answer.code != 0:
            raise self._no_answer("scancel", answer)
        return Delivery.SENT

    def _no_answer(self, command: str, answer: CommandResult) -> ClusterError:
        return ClusterError(
            f"{command} failed: {_said(answer, self.timeout_s)}",
            hint="does the controller answer (`scontrol ping`)? does SLURM_CONF name the right cluster?",
        )


def leader_of(job_id: str) -> str:
    """`123+1`, `123_4` or `123.batch` as the id that addresses the whole job: 123.

    Raises:
        ClusterError: it is no id of a job.
    """
    match = _ID.fullmatch(job_id.strip())
    if match is None:
        raise ClusterError(f"{job_id!r} is no id of a Slurm job", hint="`squeue --me` lists yours")
    return match[1]


def _lines(answer: CommandResult) -> list[str]:
    """Where SLURM_CLUSTERS is set, a title of the cluster comes first."""
    return [line for line in answer.stdout.split("\n") if line.strip() and not line.startswith("CLUSTER: ")]


def _component(line: str) -> tuple[tuple[int, str], Component]:
    """One line of squeue, with its place: the component's offset, and the id (of tasks of an array)."""
    fields = line.split("|", 6)
    if len(fields) < 7:
        raise ClusterError(f"squeue wrote a line that cannot be read: {line!r}", hint=WRAPPED)
    listed, job_id, state, count, start, nodelist, reason = (field.strip() for field in fields)
    offset = _COMPONENT.fullmatch(listed)
    place = (int(offset[1]) if offset else 0, job_id)
    return place, Component(
        job_id=job_id,
        state=parse_state(state),
        reason=reason,
        nodelist=nodelist,
        start="" if start in _NO_TIME else start,
        node_count=int(count) if count.isdecimal() else 0,
    )


def _said(answer: CommandResult, timeout_s: float) -> str:
    """What a command that failed said."""
    if answer.code is None:
        return f"no answer within {timeout_s:g} s. {answer.stderr.strip()}".strip()
    return answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.code}"
