"""What each process of an attempt is started with: command line and environment.

Another launcher than the local one (Slurm steps) replaces this module's functions and nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from hpcflow.job.verdict import THE_DRIVER, Member
from hpcflow.plan.plan import Plan, RankPlan, RolePlan
from hpcflow.rpc.identity import DRIVER, ProcessIdentity
from hpcflow.spec.run import RunSpec

Command = Callable[[Member], list[str]]


def command_line(member: Member) -> list[str]:
    """The program of one process; it learns everything else from its environment."""
    if member.role == DRIVER:
        return [sys.executable, "-m", "hpcflow.driver"]
    return [sys.executable, "-m", "hpcflow.roles", member.role]


def ranks(plan: Plan) -> list[tuple[Member, RolePlan, RankPlan]]:
    """All role processes of a plan."""
    return [(Member(role.role, rank.rank), role, rank) for role in plan.roles for rank in role.ranks]


def identities(plan: Plan, of_supervisor: ProcessIdentity) -> dict[Member, ProcessIdentity]:
    """Who each process is; what they share is taken from the supervisor's identity."""

    def identity(member: Member, local_rank: int, world_size: int) -> ProcessIdentity:
        return ProcessIdentity(
            run_dir=of_supervisor.run_dir,
            attempt=of_supervisor.attempt,
            control=of_supervisor.control,
            token=of_supervisor.token,
            role=member.role,
            rank=member.rank,
            local_rank=local_rank,
            world_size=world_size,
            address=of_supervisor.address,
            parent=os.getpid(),
        )

    found = {member: identity(member, rank.local_rank, role.world_size) for member, role, rank in ranks(plan)}
    return {**found, THE_DRIVER: identity(THE_DRIVER, 0, 1)}


def environment(member: Member, plan: Plan, spec: RunSpec, *, base: Mapping[str, str]) -> dict[str, str]:
    """Variables of one process, but for its identity; `base` is the supervisor's own environment.

    GPU numbers of the plan are positions in the list that was granted to the job.
    """
    gpus: tuple[int, ...] = ()
    cpus = spec.slurm.driver.cpus_per_rank
    for found, role, rank in ranks(plan):
        if found == member:
            gpus, cpus = rank.gpus, role.cpus_per_rank
    granted = base.get("CUDA_VISIBLE_DEVICES", "")
    names = granted.split(",") if granted else [str(gpu) for gpu in range(max(gpus, default=-1) + 1)]
    return {
        **base,
        "OMP_NUM_THREADS": str(cpus),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **spec.slurm.environment,
        **spec.slurm.nccl,
        "CUDA_VISIBLE_DEVICES": ",".join(names[gpu] for gpu in gpus),
    }
