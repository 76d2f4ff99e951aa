"""A run on Slurm, seen from the login node: check the plan against the cluster, make the script, submit it.

Nothing is written here but by `launch`. SLURM_CONF of this process selects the cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcflow.launch import batch_script, checks
from hpcflow.observe.job import JobRecord
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from hpcflow.slurm.client import SlurmClient
from hpcflow.slurm.env import submission_environment
from hpcflow.spec.load import load_resolved
from hpcflow.spec.run import RunSpec


def settle(spec: RunSpec, plan: Plan) -> checks.Checked:
    """The plan as this cluster is asked for it, by one question to its controller.

    Raises:
        ClusterError: Slurm would refuse the job, or leave it pending for ever.
    """
    wanted = batch_script.with_defaults(plan, os.environ)
    if "clusters" in spec.slurm.options or "SBATCH_CLUSTERS" in os.environ:
        return checks.Checked(wanted, ("the job goes to another cluster, of which nothing was checked",))
    return checks.check(spec, wanted, SlurmClient().partitions())


def rehearsed_script(spec: RunSpec, settled: Plan, run: RunDir) -> str:
    """The script of a submission, but for the name of its mark."""
    return batch_script.render(spec, settled, run, withdrawn=run.submitit / "withdrawn_ID")


def launch(run: RunDir, attempt: int, settled: Plan) -> tuple[JobRecord, tuple[str, ...]]:
    """Submit; returns what `job.json` says, and what a person should know of it.

    Raises:
        ClusterError: Slurm refused, or nobody can tell whether it took the job; nothing will run.
    """
    from hpcflow.launch.slurm_executor import Launch  # submitit is slow to import

    spec = load_resolved(run.spec_json)
    environ = submission_environment(os.environ, stated=batch_script.stated(spec.slurm))

    def text(withdrawn: Path) -> str:
        return batch_script.render(spec, settled, run, withdrawn=withdrawn)

    launched = Launch(run, attempt, text, environ)()
    return launched.record, (launched.note,) if launched.note else ()


@contextmanager
def cluster_of(job: JobRecord | None) -> Iterator[None]:
    """For a while, SLURM_CONF is what it was when the run was submitted: it goes to the same cluster."""
    before = os.environ.get("SLURM_CONF")
    _set_conf(before if job is None else job.slurm_conf)
    try:
        yield
    finally:
        _set_conf(before)


def _set_conf(path: str | None) -> None:
    if path is None:
        os.environ.pop("SLURM_CONF", None)
    else:
        os.environ["SLURM_CONF"] = path
