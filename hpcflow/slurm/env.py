"""Slurm's environment variables: what a job was granted, and what must not leak into a job or a step.

A surrounding job's variables change what `sbatch` and `srun` do, so they are taken away; what a person set as
defaults (`SBATCH_ACCOUNT` and its kin) and what chooses the cluster (`SLURM_CONF`) stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hpcflow.errors import UserError
from hpcflow.slurm.nodes import expand

# Which cluster: without it a submission goes to another one, silently.
_CLUSTER = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER"})
_LEAKS = re.compile(
    r"(SLURM|SLURMD|SLURMSTEPD|SRUN|PMI|PMIX|OMPI|PRTE)_.*|PMI_.*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*"
)
_GPU_VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}
)
# What the batch step was granted, and what would become the default of every srun in it.
_STEP_DEFAULTS = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_.*|TASKS_PER_NODE|CPUS_PER_TASK|TRES_PER_TASK|MEM_PER_.*|GPUS.*|GRES.*"
    r"|CPU_BIND.*|MEM_BIND.*|GPU_BIND|DISTRIBUTION|EXACT|EXCLUSIVE|OVERLAP|WHOLE|THREADS_PER_CORE|HINT"
    r"|CORE_SPEC|KILL_BAD_EXIT|WAIT|MPI_TYPE|STEP_.*|SRUN_.*|NODEID|PROCID|LOCALID|GTIDS|LABELIO|UNBUFFEREDIO"
    r"|OPEN_MODE|EXPORT_ENV|NNODES|NODELIST|JOB_NUM_NODES|JOB_CPUS_PER_NODE|CPUS_ON_NODE|TASK_PID)"
    r"|SRUN_.*"
)


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What `sbatch` and the job get of the caller's environment."""
    inside = "SLURM_JOB_ID" in environ
    return {
        name: value
        for name, value in environ.items()
        if name in _CLUSTER or not (_LEAKS.fullmatch(name) or (inside and name in _GPU_VARIABLES))
    }


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What an `srun` inside the job gets of the batch script's environment."""
    return {
        name: value
        for name, value in environ.items()
        if not _STEP_DEFAULTS.fullmatch(name) and name not in _GPU_VARIABLES
    }


def granted_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the GPUs that Slurm gave to this step, in its order: numbers, UUIDs or MIG names."""
    names = environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(name.strip() for name in names.split(",") if name.strip() not in ("", "NoDevFiles"))


@dataclass(frozen=True)
class Allocation:
    """What a job was granted: `nodes` are names by component, `job_id` is the leader's."""

    job_id: str
    restarts: int
    nodes: tuple[tuple[str, ...], ...]

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> Allocation:
        """From the batch script's environment.

        Raises:
            UserError: a variable is missing: this is no Slurm job.
            ClusterError: a node list cannot be read.
        """
        try:
            size = int(environ.get("SLURM_HET_SIZE", "1"))
            if size > 1:
                lists = [environ[f"SLURM_JOB_NODELIST_HET_GROUP_{index}"] for index in range(size)]
            else:
                lists = [environ["SLURM_JOB_NODELIST"]]
            return Allocation(
                job_id=environ["SLURM_JOB_ID"],
                restarts=int(environ.get("SLURM_RESTART_COUNT", "0")),
                nodes=tuple(tuple(expand(nodelist)) for nodelist in lists),
            )
        except KeyError as error:
            raise UserError(
                f"environment variable {error.args[0]} is not set: this is no Slurm job",
                hint="the batch script starts this program; start a run with `hpcflow submit`",
            ) from error
