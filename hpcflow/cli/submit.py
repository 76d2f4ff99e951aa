"""`hpcflow plan`, `submit` and `resume`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcflow.cli import follow as following
from hpcflow.cli.interrupts import Interrupts
from hpcflow.cli.views import make_view
from hpcflow.errors import EXIT_INTERRUPTED, EXIT_OK
from hpcflow.job.commands import command_line, ranks
from hpcflow.job.verdict import THE_DRIVER
from hpcflow.launch import runs
from hpcflow.launch import submit as launching
from hpcflow.launch.cluster import Cluster
from hpcflow.launch.handle import JobHandle
from hpcflow.launch.submit import Rehearsal, Submitted


def plan(spec_path: Path, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print the plan of a spec, on whatever machine it is to run.

    Raises:
        UserError: a fault of the spec or of a file that it names.
    """
    from hpcflow.cli.render import plan_text  # rich is slow to import

    _, made = launching.resolve(spec_path, overrides)
    print(_json(msgspec.to_builtins(made)) if as_json else plan_text(made), end="")


def dry_run(
    spec_path: Path,
    overrides: Sequence[str],
    run_dir: Path | None,
    cluster: Cluster,
    *,
    as_json: bool,
) -> None:
    """Print the plan, the command of each process and the batch script; write nothing.

    Raises:
        UserError: as for `submit`, but that engines, GPUs and Slurm need not be here.
    """
    from hpcflow.cli.render import plan_text  # rich is slow to import

    shown = launching.rehearse(spec_path, overrides, run_dir, cluster)
    commands = _commands(shown)
    if as_json:
        parts = {
            "run_folder": str(shown.run.path),
            "plan": msgspec.to_builtins(shown.plan),
            "commands": commands,
            "batch_script": shown.batch_script,
        }
        print(_json(parts), end="")
        return
    print(plan_text(shown.plan))
    print(f"run folder: {shown.run.path}\n")
    if shown.reason:
        print(f"{shown.reason}\n")
    print("processes on this machine:")
    for who, command in commands.items():
        print(f"  {who:<14}{command}")
    print(f"\nbatch script for Slurm:\n\n{shown.batch_script.rstrip()}")


def _commands(shown: Rehearsal) -> dict[str, str]:
    """The command of each process; the supervisor starts the others."""
    supervisor = [sys.executable, "-m", "hpcflow.job", str(shown.run.path)]
    members = [member for member, _, _ in ranks(shown.plan)]
    commands = {f"{member.role}.{member.rank}": command_line(member) for member in [*members, THE_DRIVER]}
    return {who: shlex.join(command) for who, command in {"supervisor": supervisor, **commands}.items()}


def submit(
    spec_path: Path,
    overrides: Sequence[str],
    run_dir: Path | None,
    cluster: Cluster,
    *,
    follow: bool,
    as_json: bool,
) -> int:
    """Check, submit, say so, and follow if asked; returns the exit code.

    Raises:
        UserError: found before anything was written.
        ClusterError: the executor refused.
    """
    prepared = launching.prepare(spec_path, overrides, cluster)
    with Interrupts() as interrupts:
        submitted = launching.submit(prepared, run_dir)
        return _submitted(submitted, interrupts, follow=follow, as_json=as_json)


def resume(name: str, *, follow: bool, as_json: bool) -> int:
    """Start the next attempt, and follow it if asked; returns the exit code.

    Raises:
        UserError: there is no such run, or it cannot be resumed.
    """
    run = runs.find(name)
    with Interrupts() as interrupts:
        submitted = launching.resume(run)
        return _submitted(submitted, interrupts, follow=follow, as_json=as_json)


def _submitted(submitted: Submitted, interrupts: Interrupts, *, follow: bool, as_json: bool) -> int:
    """Say what was submitted; then follow it, or say how to."""
    _say(json.dumps(_record(submitted), ensure_ascii=False) if as_json else _text(submitted, follow))
    if not follow:
        # The run is out of reach of this Ctrl-C, and the lines above say how to end it.
        return EXIT_INTERRUPTED if interrupts.presses else EXIT_OK
    follower = following.Follower(
        JobHandle(submitted.run),
        submitted.record.attempt,
        make_view(as_json=as_json, write=_say),
        interrupts,
    )
    return follower.run()


def _record(submitted: Submitted) -> dict[str, object]:
    return {
        "event": "submitted",
        "name": submitted.run.name,
        "run_folder": str(submitted.run.path),
        "executor": submitted.record.executor,
        "job_id": submitted.record.job_id,
        "attempt": submitted.record.attempt,
        "resumes_from": submitted.resumes_from,
    }


def _text(submitted: Submitted, follow: bool) -> str:
    folder = following.quoted(str(submitted.run.path))
    record = submitted.record
    lines = [submitted.reason] if submitted.reason else []
    lines += [
        f"run folder  {submitted.run.path}",
        f"run         {submitted.run.name}",
        f"job         {record.executor} {record.job_id}, attempt {record.attempt}",
    ]
    if record.attempt > 1:
        start = submitted.resumes_from
        lines.append(
            "resumes     " + (f"from step {start}" if start else "from the beginning: no checkpoint")
        )
    if not follow:
        lines += [
            f"watch it    hpcflow status {folder}",
            f"            hpcflow logs {folder} --follow",
            f"end it      hpcflow cancel {folder}",
        ]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, flush=True)


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
