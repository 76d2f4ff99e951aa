"""What the driver and each rank are started with, wherever that is: command line and environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from hpcflow.job.verdict import THE_DRIVER, Member
from hpcflow.plan.plan import Plan, RankPlan, RolePlan
from hpcflow.rpc.identity import DRIVER, ProcessIdentity
from hpcflow.spec.roles import ROLE_NAMES
from hpcflow.spec.run import RunSpec

Command = Callable[[Member], list[str]]


def command_line(member: Member, prefix: Sequence[str] = ()) -> list[str]:
    """The program of one process; it learns everything else from its environment.

    `prefix` are words before it, such as a container runtime; a user's command gets them, not its wrapper.
    """
    if member.role == DRIVER:
        return [*prefix, sys.executable, "-m", "hpcflow.driver"]
    if is_command(member):
        return [sys.executable, "-m", "hpcflow.job.command_role", member.role, *prefix]
    return [*prefix, sys.executable, "-m", "hpcflow.roles", member.role]


def is_command(member: Member) -> bool:
    """Whether a process is a rank of a user's command, not of a role of the algorithm, nor the driver."""
    return member.role not in ROLE_NAMES and member.role != DRIVER


def optional(spec: RunSpec) -> frozenset[str]:
    """Commands that a run can go on without."""
    return frozenset(name for name, command in spec.commands.items() if not command.essential)


def members(plan: Plan) -> list[Member]:
    """All ranks of a plan, by name."""
    return [member for member, _, _ in ranks(plan)]


def ranks(plan: Plan) -> list[tuple[Member, RolePlan, RankPlan]]:
    """All role processes of a plan."""
    return [(Member(role.role, rank.rank), role, rank) for role in plan.roles for rank in role.ranks]


def identities(plan: Plan, own: ProcessIdentity) -> dict[Member, ProcessIdentity]:
    """Who each process is; what they share is taken from the identity of who starts them, this process."""

    def identity(member: Member, local_rank: int, world_size: int) -> ProcessIdentity:
        return ProcessIdentity(
            run_dir=own.run_dir,
            attempt=own.attempt,
            control=own.control,
            token=own.token,
            role=member.role,
            rank=member.rank,
            local_rank=local_rank,
            world_size=world_size,
            address=own.address,
            parent=os.getpid(),
        )

    found = {member: identity(member, rank.local_rank, role.world_size) for member, role, rank in ranks(plan)}
    return {**found, THE_DRIVER: identity(THE_DRIVER, 0, 1)}


def local_gpus(plan: Plan, environ: Mapping[str, str]) -> dict[int, str]:
    """Names of this machine's GPUs by the plan's numbers, which are positions in what was granted."""
    granted = environ.get("CUDA_VISIBLE_DEVICES", "")
    names = granted.split(",") if granted else [str(gpu) for gpu in range(plan.gpus_per_node)]
    return dict(enumerate(names))


def environment(
    member: Member, plan: Plan, spec: RunSpec, *, base: Mapping[str, str], gpus: Mapping[int, str]
) -> dict[str, str]:
    """Variables of one process, but for its identity.

    `base` is the environment of the process that starts it, `gpus` are names by the plan's numbers.
    """
    taken: tuple[int, ...] = ()
    cpus = spec.slurm.driver.cpus_per_rank
    for found, role, rank in ranks(plan):
        if found == member:
            taken, cpus = rank.gpus, role.cpus_per_rank
    return {
        **base,
        "OMP_NUM_THREADS": str(cpus),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **spec.slurm.environment,
        **spec.slurm.nccl,
        **(spec.commands[member.role].environment if member.role in spec.commands else {}),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus[gpu] for gpu in taken),
    }
