"""From a spec file to a job: first everything that can be refused, then the run folder, then the executor.

`prepare` writes nothing. `submit` and `resume` either leave a run that was handed to the executor or leave
the disk as it was. Nobody waits for the job here, only for the executors' own commands.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from hpcflow.checkpoint.store import CheckpointStore
from hpcflow.errors import ClusterError, RunDirError, UnclearSubmission, UserError
from hpcflow.launch import checks, cluster, local_executor, machine, runs, slurm_launch
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.observe.status import RunStatus, read_status
from hpcflow.plan import build
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from hpcflow.spec.files import check_files
from hpcflow.spec.load import load, load_resolved, save
from hpcflow.spec.run import RunSpec
from hpcflow.spec.topology import read_topology


@dataclass(frozen=True)
class Prepared:
    """A run that nothing on this side speaks against; `settled` is what Slurm is asked for."""

    spec: RunSpec
    plan: Plan
    choice: cluster.Choice
    settled: checks.Checked | None = None


@dataclass(frozen=True)
class Rehearsal:
    """What `submit --dry-run` shows; nothing of it was written.

    `refusal` is what speaks against it on this cluster.
    """

    spec: RunSpec
    plan: Plan
    run: RunDir
    choice: cluster.Choice
    batch_script: str
    warnings: tuple[str, ...]
    refusal: ClusterError | None


@dataclass(frozen=True)
class Submitted:
    """A run in the hands of the executor; `resumes_from` is a step, None for the beginning.

    `notes` are sentences for a person: why this executor, what to mind.
    """

    run: RunDir
    plan: Plan
    record: JobRecord
    notes: tuple[str, ...] = ()
    resumes_from: int | None = None


def resolve(spec_path: Path, overrides: Sequence[str]) -> tuple[RunSpec, Plan]:
    """Spec and plan, files checked; nothing of this machine matters yet.

    Raises:
        UserError: a fault of the spec, or of a file that it names.
    """
    spec = load(spec_path, overrides)
    plan = build.build(spec, read_topology(spec))
    check_files(spec)
    return spec, plan


def prepare(spec_path: Path, overrides: Sequence[str], choice: cluster.Cluster) -> Prepared:
    """Check everything that can be known before a submission.

    Raises:
        UserError: the spec, its files, the installed engines or the GPUs do not fit.
        ClusterError: Slurm was asked for and is not there, or the cluster cannot run the plan.
    """
    spec, plan = resolve(spec_path, overrides)
    chosen = cluster.choose(choice)
    if chosen.executor == "slurm":
        return Prepared(spec, plan, chosen, _settled(spec, plan))
    _check_local(plan)
    return Prepared(spec, plan, chosen)


def rehearse(
    spec_path: Path, overrides: Sequence[str], run_dir: Path | None, choice: cluster.Cluster
) -> Rehearsal:
    """What a submission would make; engines, GPUs and Slurm need not be on this machine.

    Raises:
        UserError: a fault of the spec, of its files, or of the run folder.
    """
    spec, plan = resolve(spec_path, overrides)
    run = RunDir(run_folder(spec, run_dir))
    settled = checks.Checked(plan, ())
    refusal = None
    try:
        chosen = cluster.choose(choice)
    except (UserError, ClusterError) as error:  # the script can be shown anywhere
        chosen = cluster.Choice("slurm", f"{error.message}: nothing is known of the cluster")
    else:
        try:
            settled = slurm_launch.settle(spec, plan) if chosen.executor == "slurm" else settled
        except ClusterError as error:
            refusal = error
    script = slurm_launch.rehearsed_script(spec, settled.plan, run)
    return Rehearsal(spec, plan, run, chosen, script, settled.warnings, refusal)


def run_folder(spec: RunSpec, run_dir: Path | None) -> Path:
    """The absolute folder that the run will get.

    Raises:
        RunDirError: the folder is taken or cannot be used.
    """
    name = runs.fresh_name(spec.name, datetime.now())
    folder = Path(os.path.abspath(run_dir or runs.runs_root() / name))
    if not str(folder).isprintable():  # no line of a batch script can hold it
        raise RunDirError(f"run folder {str(folder)!r} has unprintable characters", hint="choose another")
    runs.check_free(folder)
    return folder


def submit(prepared: Prepared, run_dir: Path | None) -> Submitted:
    """Make the run folder, publish spec and plan, and hand the run to the executor.

    Raises:
        RunDirError: the folder is taken or cannot be made.
        ClusterError: the executor refused; the folder is gone again.
    """
    folder = run_folder(prepared.spec, run_dir)
    run = RunDir(folder)
    with _fresh_folder(folder):
        save(prepared.spec, run.spec_json)
        prepared.plan.save(run.plan_json)
        record, notes = _launch(run, 1, prepared.settled)
    reason = (prepared.choice.reason,) if prepared.choice.reason else ()
    return Submitted(run, prepared.plan, record, (*reason, *notes))


def resume(run: RunDir) -> Submitted:
    """Start the next attempt of a run on the executor that it had.

    Raises:
        UserError: it runs, is done, or nobody can tell whether it runs.
        ClusterError: the executor refused; the run is as before.
    """
    with _alone(run):
        check_resumable(run, read_status(run))
        plan, job = _plan_of(run), read_job(run)
        executor = cluster.choose("auto").executor if job is None else job.executor
        found = CheckpointStore(run, keep=1).latest()
        attempts = run.attempts()
        number = attempts[-1].number + 1 if attempts else 1
        if executor == "local":
            _check_local(plan)
            record, notes = _launch(run, number, None)
        else:
            with slurm_launch.cluster_of(job):
                record, notes = _launch(run, number, _settled(load_resolved(run.spec_json), plan))
    return Submitted(run, plan, record, notes, None if found is None else found.manifest.step)


def _check_local(plan: Plan) -> None:
    machine.check_engines(plan)
    build.check_local(plan, machine.available_gpus() if plan.gpus_per_node else 0)


def _settled(spec: RunSpec, plan: Plan) -> checks.Checked:
    """What Slurm is asked for. The nodes have this installation, and its engines, or else a container."""
    if not spec.slurm.container_prefix:
        machine.check_engines(plan)
    return slurm_launch.settle(spec, plan)


def _launch(run: RunDir, attempt: int, settled: checks.Checked | None) -> tuple[JobRecord, tuple[str, ...]]:
    """Hand the run to Slurm if it was settled what to ask for, else to this machine."""
    if settled is None:
        return local_executor.launch(run, attempt), ()
    record, notes = slurm_launch.launch(run, attempt, settled.plan)
    return record, (*settled.warnings, *notes)


def check_resumable(run: RunDir, status: RunStatus) -> None:
    """Refuse to start a second job beside a first, or after the end.

    Raises:
        UserError: with the state that speaks against it.
    """
    if not (run.spec_json.is_file() and run.plan_json.is_file()):
        raise RunDirError(f"{run.path} has no spec.json or plan.json", hint="submit the run anew")
    if status.active:
        raise UserError(f"{run.name} is {status.state}", hint=f"end it first:  hpcflow cancel {run.path}")
    if status.state == "done":
        raise UserError(
            f"{run.name} is done: all {status.steps} steps", hint="submit the spec with more steps"
        )
    # A submission that was not completed left no job behind; another unknown may hide a running one.
    if status.job_id is not None and (status.state == "unknown" or status.may_come_back):
        raise UserError(
            f"nobody here can tell whether {run.name} still runs: {status.reason}",
            hint="look there, and end it there",
        )


def _plan_of(run: RunDir) -> Plan:
    try:
        return Plan.load(run.plan_json)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunDirError(f"{run.plan_json} cannot be read: {error}", hint="submit the run anew") from error


@contextmanager
def _fresh_folder(folder: Path) -> Iterator[None]:
    """A new or empty folder that is taken back if the submission fails."""
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=existed)
    except OSError as error:
        raise RunDirError(f"run folder {folder} cannot be made: {error.strerror}") from error
    with _alone(RunDir(folder)):
        runs.check_free(folder)  # again: what another submission put here meanwhile is not ours to take back
        try:
            yield
        except BaseException as error:
            # A job that was given up may still arrive: what ends it then stays, and so does its folder.
            kept = RunDir(folder).submitit if isinstance(error, UnclearSubmission) else None
            for entry in folder.iterdir():
                if entry != kept:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if not existed and kept is None:
                folder.rmdir()
            if isinstance(error, OSError):
                problem = f"run folder {folder} cannot be written: {error.strerror or error}"
                raise RunDirError(problem, hint="choose another, by --run-dir") from error
            raise


@contextmanager
def _alone(run: RunDir) -> Iterator[None]:
    """One submission or resume of a run at a time."""
    handle = os.open(run.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            hint = f"see how far it is:  hpcflow status {run.path}"
            raise UserError(f"{run.name} is being started by another command", hint=hint) from error
        yield
    finally:
        os.close(handle)
