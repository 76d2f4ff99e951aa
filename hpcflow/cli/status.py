"""`hpcflow status` and `hpcflow cancel`."""

from __future__ import annotations

import json

import msgspec

from hpcflow.cli import screens
from hpcflow.launch import runs
from hpcflow.launch.handle import Ending, JobHandle
from hpcflow.observe.status import RunStatus, read_status


def status(name: str, *, as_json: bool) -> None:
    """Print one look at a run.

    Raises:
        UserError: there is no such run.
    """
    looked = read_status(runs.find(name))
    print(to_json(looked) if as_json else screens.status_text(looked))


def cancel(name: str, timeout_s: float, *, as_json: bool) -> None:
    """End a run and say how that went; a run that is over is left alone.

    Raises:
        UserError: there is no such run, or it runs on another host.
        ClusterError: Slurm does not answer, or does not end the job.
    """
    handle = JobHandle(runs.find(name))
    before = handle.status()
    if before.active and not as_json:
        waits = before.slurm is not None and before.slurm.waits
        doing = "taking {} from the queue" if waits else "asking {} to save a checkpoint and stop"
        print(doing.format(before.name), flush=True)
    ending = handle.cancel(timeout_s)
    print(to_json(ending.status) if as_json else _ending_text(ending))


def _ending_text(ending: Ending) -> str:
    status = ending.status
    if ending.how == "over already":
        return f"nothing to cancel: {status.name} is {screens.state_line(status)}"
    how = {
        "asked": f"{status.name} is {screens.state_line(status)}",
        "at once": f"{status.name} did not stop in time and was ended at once",
        "killed": f"{status.name} did not answer; its processes were killed",
    }[ending.how]
    if status.checkpoint_step is None:
        return f"{how}; it has no checkpoint"
    return f"{how}; checkpoint of step {status.checkpoint_step}"


def to_json(status: RunStatus) -> str:
    """A status as JSON text."""
    return json.dumps(msgspec.to_builtins(status), indent=2, ensure_ascii=False)
