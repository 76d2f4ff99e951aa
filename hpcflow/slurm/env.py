"""Slurm's environment variables: what a job was granted, and what must not leak into a job or a step.

A surrounding job's variables change what `sbatch` and `srun` do, so they are taken away; what a person set as
defaults (`SBATCH_ACCOUNT` and its kin) and what chooses the cluster (`SLURM_CONF`) stays. Values are never
looked into, so blanks, commas, quotes and newlines in them pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcflow.errors import UserError
from hpcflow.slurm.nodes import expand

# Which cluster, and who asks: without it a submission goes to another one, silently, or is refused.
_CLUSTER = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER", "SLURM_JWT"})
_LEAKS = re.compile(
    r"(SLURM|SLURMD|SLURMSTEPD|SRUN|PMI|PMIX|PMI2|OMPI|PRTE|PRRTE|HYDI|HYDRA|TORCHELASTIC)_.*"
    r"|SBATCH_(CPU|MEM)_BIND.*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_NAME|ROLE_WORLD_SIZE"
    r"|MASTER_ADDR|MASTER_PORT"
)
_GPU_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
    }
)
# sbatch takes these variables before the lines of a script. Each would undo what follows from the plan (nodes
# and GPUs) or from supervision (output, signal, requeue, environment), or have sbatch wait for the job's end.
_UNDOES_THE_SCRIPT = re.compile(
    r"SBATCH_(ARRAY_INX|CLUSTERS_WAIT|CORE_SPEC|CPU_FREQ_REQ|CPUS_PER_GPU|DEBUG|DELAY_BOOT|DISTRIBUTION|ERROR|EXPORT"
    r"|GET_USER_ENV|GPU_.*|GPUS.*|GRES.*|HINT|IGNORE_PBS|INPUT|JOB_NAME|MEM_PER_.*|NO_KILL|NO_REQUEUE|NTASKS.*"
    r"|NNODES|NODES|OPEN_MODE|OUTPUT|OVERCOMMIT|REQUEUE|SIGNAL|SPREAD_JOB|THREAD_SPEC|THREADS_PER_CORE"
    r"|TRES_.*|USE_MIN_NODES|WAIT|WAIT_ALL_NODES)"
)
# The default of a person for what a script may state, by the option's long name.
_DEFAULT_OF = {
    "account": "SBATCH_ACCOUNT",
    "constraint": "SBATCH_CONSTRAINT",
    "exclusive": "SBATCH_EXCLUSIVE",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "reservation": "SBATCH_RESERVATION",
    "time": "SBATCH_TIMELIMIT",
}
# What the batch step was granted, and what would become the default of every srun in it. In a hetjob the same
# names stand for one component each.
_STEP_DEFAULTS = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_.*|TASKS_PER_NODE|CPUS_PER_(TASK|GPU)|TRES_PER_TASK|MEM_PER_.*|GPUS.*|GRES.*"
    r"|JOB_GPUS|CPU_BIND.*|MEM_BIND.*|GPU_BIND.*|CPU_FREQ_REQ|DISTRIBUTION|EXACT|EXCLUSIVE|OVERLAP|OVERCOMMIT|WHOLE"
    r"|THREADS_PER_CORE|THREADS|HINT|CORE_SPEC|KILL_BAD_EXIT|NO_KILL|WAIT|MPI_TYPE|STEP_.*|STEPID|SRUN_.*"
    r"|NODEID|PROCID|LOCALID|GTIDS|LABELIO|UNBUFFEREDIO|OPEN_MODE|EXPORT_ENV|NNODES|NODELIST|JOB_NUM_NODES"
    r"|JOB_CPUS_PER_NODE|CPUS_ON_NODE|TASK_PID|CONSTRAINT|EXCLUDE_.*|RESV_PORTS|STD(IN|OUT|ERR)MODE|DEPENDENCY"
    r"|TIMELIMIT|PARTITION|SPREAD_JOB|USE_MIN_NODES|RELATIVE|MULTI_PROG|WORKING_DIR|REMOTE_CWD|IMMEDIATE)"
    r"(_(HET|PACK)_GROUP_[0-9]+)?"
    r"|SLURM_JOB_NODELIST_PACK_GROUP_[0-9]+|SRUN_.*|PMI_.*|PMIX_.*"
)
_NUMBERS = re.compile(r"([0-9]+)-([0-9]+)")


def submission_environment(environ: Mapping[str, str], *, stated: Collection[str] = ()) -> dict[str, str]:
    """What `sbatch` and the job get of the caller's environment.

    `stated` are long names of the options that the script states (`partition`, `time`): sbatch would take a
    person's default (`SBATCH_PARTITION`) before the script's line, for every component.
    """
    inside = "SLURM_JOB_ID" in environ or "SLURM_JOBID" in environ
    overruled = {_DEFAULT_OF[option] for option in stated if option in _DEFAULT_OF}
    return {
        name: value
        for name, value in environ.items()
        if name in _CLUSTER
        or not (
            _LEAKS.fullmatch(name)
            or _UNDOES_THE_SCRIPT.fullmatch(name)
            or name in overruled
            or (inside and name in _GPU_VARIABLES)
        )
    }


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What an `srun` inside the job gets of the batch script's environment."""
    return {
        name: value
        for name, value in environ.items()
        if not _STEP_DEFAULTS.fullmatch(name) and name not in _GPU_VARIABLES
    }


def granted_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the GPUs that Slurm gave to this step, in its order: numbers, UUIDs or MIG names.

    CUDA_VISIBLE_DEVICES is right also where the site lets a step see its own devices only, numbered from 0;
    SLURM_STEP_GPUS (numbers of the node) is what is left where binding is off.
    """
    names = environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        names = environ.get("SLURM_STEP_GPUS", "")
    found: list[str] = []
    for name in (name.strip() for name in names.split(",")):
        if numbers := _NUMBERS.fullmatch(name):
            found += [str(number) for number in range(int(numbers[1]), int(numbers[2]) + 1)]
        elif name not in ("", "NoDevFiles", "(null)"):
            found.append(name)
    return tuple(found)


@dataclass(frozen=True)
class Allocation:
    """What a job was granted: `job_id` is the leader's, `nodes` are by component, `node` is this one."""

    job_id: str
    restarts: int
    nodes: tuple[tuple[str, ...], ...]
    node: str = ""

    @staticmethod
    def from_environ(environ: Mapping[str, str]) -> Allocation:
        """From the environment of the batch script, or of a step.

        Raises:
            UserError: a variable is missing or no number: this is no Slurm job.
            ClusterError: a node list cannot be read.
        """
        size = _number(environ, "SLURM_HET_SIZE", default=0)
        lists = [f"SLURM_JOB_NODELIST_HET_GROUP_{index}" for index in range(size)] or ["SLURM_JOB_NODELIST"]
        # In every component this is the leader's id.
        job_id = _text(environ, "SLURM_JOB_ID")
        return Allocation(
            job_id=job_id,
            restarts=_number(environ, "SLURM_RESTART_COUNT", default=0),
            nodes=tuple(_nodes(environ, name) for name in lists),
            node=environ.get("SLURMD_NODENAME", ""),
        )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise _no_job(f"environment variable {name} is not set")
    return value


def _nodes(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    value = _text(environ, name)
    nodes = tuple(expand(value))
    if not nodes:
        raise _no_job(f"environment variable {name} names no node: {value!r}")
    return nodes


def _number(environ: Mapping[str, str], name: str, *, default: int) -> int:
    value = environ.get(name, "")
    if not value:
        return default
    if not value.isdecimal():
        raise _no_job(f"environment variable {name} is no number: {value!r}")
    return int(value)


def _no_job(problem: str) -> UserError:
    return UserError(
        f"{problem}: this is no Slurm job",
        hint="the batch script starts this program; start a run with `hpcflow submit`",
    )
