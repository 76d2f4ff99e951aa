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
from hpcflow.job.steps import srun
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
        ClusterError: all was shown, and Slurm would refuse the job or leave it pending for ever.
    """
    shown = launching.rehearse(spec_path, overrides, run_dir, cluster)
    print(_json(_rehearsed(shown)) if as_json else _rehearsal_text(shown), end="")
    if shown.refusal is not None:
        raise shown.refusal


def _rehearsed(shown: Rehearsal) -> dict[str, object]:
    return {
        "run_folder": str(shown.run.path),
        "executor": shown.choice.executor,
        "reason": shown.choice.reason,
        "warnings": shown.warnings,
        "refusal": None if shown.refusal is None else str(shown.refusal),
        "plan": msgspec.to_builtins(shown.plan),
        "commands": _commands(shown),
        "srun": _sruns(shown),
        "batch_script": shown.batch_script,
    }


def _rehearsal_text(shown: Rehearsal) -> str:
    from hpcflow.cli.render import plan_text  # rich is slow to import

    parts = [plan_text(shown.plan), f"run folder: {shown.run.path}\n"]
    if shown.choice.reason:
        parts.append(f"{shown.choice.reason}\n")
    parts += [f"warning: {warning}\n" for warning in shown.warnings]
    parts.append("".join(["steps on Slurm:\n", *_rows(_sruns(shown))]))
    if shown.choice.executor == "local":
        parts.append("".join(["processes on this machine:\n", *_rows(_commands(shown))]))
    return "\n".join([*parts, f"batch script for Slurm:\n\n{shown.batch_script.rstrip()}\n"])


def _rows(commands: dict[str, str]) -> list[str]:
    width = 2 + max(12, *(len(who) for who in commands))
    return [f"  {who:<{width}}{command}\n" for who, command in commands.items()]


def _sruns(shown: Rehearsal) -> dict[str, str]:
    """The `srun` of each step; nodes are NODE0, NODE1, ... until Slurm has chosen them."""
    hosts = {node: f"NODE{node}" for node in range(shown.plan.nodes)}
    return {
        step.name: shlex.join(srun(step, shown.plan, hosts, python=sys.executable))
        for step in shown.plan.job_steps
    }


def _commands(shown: Rehearsal) -> dict[str, str]:
    """The command of each process; the supervisor starts the others."""
    supervisor = [sys.executable, "-m", "hpcflow.job", str(shown.run.path)]
    if shown.choice.executor == "slurm":
        supervisor.append("slurm")
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
        ClusterError: the executor refused, or would leave the job pending for ever.
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
    said = (
        json.dumps(submitted_record(submitted), ensure_ascii=False)
        if as_json
        else submitted_text(submitted, follow=follow)
    )
    _say(said)
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


def submitted_record(submitted: Submitted) -> dict[str, object]:
    """The same for programs."""
    return {
        "event": "submitted",
        "name": submitted.run.name,
        "run_folder": str(submitted.run.path),
        "executor": submitted.record.executor,
        "job_id": submitted.record.job_id,
        "attempt": submitted.record.attempt,
        "resumes_from": submitted.resumes_from,
        "notes": submitted.notes,
        "shape": msgspec.to_builtins(submitted.plan.shape),
        "steps": msgspec.to_builtins(submitted.plan.job_steps),
    }


def submitted_text(submitted: Submitted, *, follow: bool) -> str:
    """What was submitted, where its roles will be, and the commands to watch and to end it."""
    folder = following.quoted(str(submitted.run.path))
    record = submitted.record
    lines = [
        *submitted.notes,
        f"run folder  {submitted.run.path}",
        f"run         {submitted.run.name}",
        f"job         {record.executor} {record.job_id}, attempt {record.attempt}",
    ]
    if record.attempt > 1:
        start = submitted.resumes_from
        lines.append(
            "resumes     " + (f"from step {start}" if start else "from the beginning: no checkpoint")
        )
    watch = [f"hpcflow status {folder}", f"hpcflow logs {folder} --follow"]
    if record.executor == "slurm":
        from hpcflow.cli.render import placement_text  # rich is slow to import

        lines += ["", *placement_text(submitted.plan).splitlines(), ""]
        watch.append(f"squeue --jobs={record.job_id}")
    if not follow:
        lines += [f"{'' if n else 'watch it':<12}{command}" for n, command in enumerate(watch)]
        lines.append(f"end it      hpcflow cancel {folder}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, flush=True)


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
