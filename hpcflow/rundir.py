"""Every path of a run, and nothing else: the only channel between login node and job.

RUN/spec.json plan.json job.json         written at submission
RUN/cancelled.json                       written by a cancel of a job that waits
RUN/batch.log                            standard output and error of Slurm's batch script, all attempts
RUN/state.json metrics.jsonl             written by the driver
RUN/checkpoints/step_00000020/           valid once its manifest is in it (MANIFEST)
RUN/attempt_1/supervisor.json endpoints.json exit.json    written by the supervisor
RUN/attempt_1/stop_asked                 made by the command that asks for a stop first, on Slurm
RUN/attempt_1/logs/actor.0.log           standard output and error of one rank
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"

_ATTEMPT = re.compile(r"attempt_([1-9][0-9]*)")
_STEP = re.compile(r"step_([0-9]{8})")


@dataclass(frozen=True)
class AttemptDir:
    """One start of the job: its logs are never overwritten by a later attempt."""

    path: Path
    number: int

    @property
    def logs(self) -> Path:
        """Folder of one log per process."""
        return self.path / "logs"

    def log(self, role: str, rank: int) -> Path:
        """Log of one process; the driver and the supervisor are rank 0 of their own role."""
        return self.logs / f"{role}.{rank}.log"

    @property
    def endpoints_json(self) -> Path:
        """Where each rank listens; no secrets."""
        return self.path / "endpoints.json"

    @property
    def supervisor_json(self) -> Path:
        """Process that leads the attempt: pid, start time, host."""
        return self.path / "supervisor.json"

    @property
    def exit_json(self) -> Path:
        """Why the attempt ended; missing while it runs."""
        return self.path / "exit.json"

    @property
    def stop_asked(self) -> Path:
        """Made by the command that is first to ask for a stop: a second request would end all at once."""
        return self.path / "stop_asked"


@dataclass(frozen=True)
class RunDir:
    """A run folder."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name: the folder's."""
        return self.path.name

    @property
    def spec_json(self) -> Path:
        """The resolved spec, every default written out."""
        return self.path / "spec.json"

    @property
    def plan_json(self) -> Path:
        """The plan."""
        return self.path / "plan.json"

    @property
    def job_json(self) -> Path:
        """Executor and job id."""
        return self.path / "job.json"

    @property
    def cancelled_json(self) -> Path:
        """Which job was cancelled while it waited to start."""
        return self.path / "cancelled.json"

    @property
    def batch_log(self) -> Path:
        """What Slurm's batch script wrote, in all attempts."""
        return self.path / "batch.log"

    @property
    def state_json(self) -> Path:
        """What the driver is doing, replaced at most once a second."""
        return self.path / "state.json"

    @property
    def metrics_jsonl(self) -> Path:
        """One row per step and attempt; readers take the last row of a step."""
        return self.path / "metrics.jsonl"

    @property
    def submitit(self) -> Path:
        """submitit's own files; never read as state."""
        return self.path / "submitit"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint taken after `step` steps."""
        return self.checkpoints / f"step_{step:08d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint folder, complete or not, ascending."""
        return _numbers(self.checkpoints, _STEP)

    def attempt(self, number: int) -> AttemptDir:
        """Attempt `number`, which need not exist."""
        return AttemptDir(self.path / f"attempt_{number}", number)

    def attempts(self) -> list[AttemptDir]:
        """Attempts that were started, ascending."""
        return [self.attempt(number) for number in _numbers(self.path, _ATTEMPT)]


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    if not folder.is_dir():
        return []
    matches = (pattern.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match)
