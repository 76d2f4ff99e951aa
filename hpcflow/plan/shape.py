"""Which Slurm job a placement becomes: one job with concurrent steps, or a heterogeneous job.

Roles that share nodes must be steps of one job or of one component, because components of a heterogeneous
job never share a node. Roles that want different kinds of nodes must be in different components. An island
is a set of roles that may share nodes; each island becomes one component. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.plan import topology
from hpcflow.plan.placement import owner
from hpcflow.plan.plan import Component, JobStep, RolePlan, Shape
from hpcflow.spec.roles import owner_of
from hpcflow.spec.run import RunSpec
from hpcflow.spec.slurm import NodeKind

ONE_JOB_PRICE = "starts like any job; all roles are requeued together"
HETJOB_PRICE = (
    "only Slurm's backfill starts such a job (every 30 s by default), once the nodes of all components are "
    "free; all components are requeued together"
)
# These take nodes of their own in a heterogeneous job, also where they run on CPUs.
_LARGE: frozenset[str] = frozenset({"actor", "critic", "rollout"})


def islands(spec: RunSpec) -> tuple[tuple[str, ...], ...]:
    """Roles by island, sharers with the role whose GPUs they use; the actor's island is the first.

    Raises:
        SpecErrors: one job is asked for, but roles want different kinds of nodes.
    """
    present = spec.present()
    kinds = {name: spec.node_kind(name) for name in present}
    different = len(set(kinds.values())) > 1
    if different and spec.slurm.shape == "steps":
        raise SpecErrors([_not_one_job(spec, kinds)])
    apart = spec.slurm.shape == "hetjob"
    found: dict[tuple[NodeKind, str | None], list[str]] = {}
    for name in present:
        shared = owner_of(name, present)
        alone = apart and (shared in _LARGE or present[shared].on_gpus)
        # What is small and on CPUs joins the first island of its kind.
        first = next((key for key in found if key[0] == kinds[name]), (kinds[name], None))
        found.setdefault((kinds[name], shared) if alone else first, []).append(name)
    return tuple(tuple(names) for names in found.values())


def shape(spec: RunSpec, components: Sequence[Component]) -> Shape:
    """The job's shape, why, and what it costs."""
    if len(components) > 1:
        many = f"{len(components)} components, none shares a node"
        asked = spec.slurm.shape == "hetjob"
        why = "asked for by slurm.shape" if asked else "roles ask for different kinds of nodes"
        return Shape("hetjob", f"{why}: {many}", HETJOB_PRICE)
    if spec.slurm.shape == "hetjob":
        return Shape("steps", "one component alone is a plain job", ONE_JOB_PRICE)
    why = (
        "asked for by slurm.shape" if spec.slurm.shape == "steps" else "all roles want the same kind of node"
    )
    return Shape("steps", why, ONE_JOB_PRICE)


def job_steps(roles: Sequence[RolePlan], components: Sequence[Component]) -> tuple[JobStep, ...]:
    """One step per GPU set: the roles that share one are started together."""
    by_name = {role.role: role for role in roles}
    groups: dict[str, list[RolePlan]] = {}
    for role in roles:
        groups.setdefault(owner(role, roles), []).append(role)
    return tuple(_step(by_name[name], group, components) for name, group in groups.items())


def _step(first: RolePlan, group: Sequence[RolePlan], components: Sequence[Component]) -> JobStep:
    cpus, gibibytes = needs_by_node(group)
    index = next(index for index, component in enumerate(components) if first.nodes[0] in component.nodes)
    return JobStep(
        name="+".join(role.role for role in group),
        component=index,
        roles=tuple(role.role for role in group),
        nodes=first.nodes,
        gpus_per_node=max(len(gpus) for gpus in first.gpus_by_node),
        cpus_per_node=max(cpus.values()),
        memory_mib_per_node=mebibytes(max(gibibytes.values())),
    )


def components(
    spec: RunSpec, groups: Sequence[Sequence[str]], roles: Sequence[RolePlan]
) -> tuple[Component, ...]:
    """One component per island; the driver and the supervisor are on the first node of the first."""
    found = []
    for index, names in enumerate(groups):
        members = [role for role in roles if role.role in names]
        cpus, gibibytes = needs_by_node(members)
        nodes = tuple(sorted(cpus))
        if index == 0:
            cpus[nodes[0]] += spec.slurm.driver.cpus_per_rank
            gibibytes[nodes[0]] += spec.slurm.driver.memory_gib_per_rank
        kind = spec.node_kind(names[0])
        gpus = _gpus_of_a_node(members)
        if gpus and topology.takes_whole_nodes(spec):
            gpus = spec.slurm.gpus_per_node
        found.append(
            Component(
                roles=tuple(names),
                nodes=nodes,
                partition=kind.partition,
                constraint=kind.constraint,
                gpu_type=kind.gpu_type,
                gpus_per_node=gpus,
                cpus_per_node=max(cpus.values()),
                memory_mib_per_node=mebibytes(max(gibibytes.values())),
                gpus_are_numbered=spec.slurm.topology is not None
                and gpus > 0
                and not topology.obstacle(spec, names, gpus),
            )
        )
    return tuple(found)


def needs_by_node(roles: Sequence[RolePlan]) -> tuple[dict[int, int], dict[int, float]]:
    """Cores and GiB that the ranks of `roles` take on each node."""
    cpus: dict[int, int] = {}
    gibibytes: dict[int, float] = {}
    for role in roles:
        for rank in role.ranks:
            cpus[rank.node] = cpus.get(rank.node, 0) + role.cpus_per_rank
            gibibytes[rank.node] = gibibytes.get(rank.node, 0.0) + role.memory_gib_per_rank
    return cpus, gibibytes


def mebibytes(gibibytes: float) -> int:
    """Rounded up, as Slurm takes whole MiB."""
    return math.ceil(gibibytes * 1024)


def _gpus_of_a_node(roles: Sequence[RolePlan]) -> int:
    """GPUs to ask of each node: sets start at GPU 0, so the highest number tells."""
    return max((gpu + 1 for role in roles for gpus in role.gpus_by_node for gpu in gpus), default=0)


def _not_one_job(spec: RunSpec, kinds: dict[str, NodeKind]) -> SpecError:
    named = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
    return SpecError(
        spec.place("slurm.shape"),
        f"one job has one kind of node, but roles ask for several ({named})",
        value="steps",
        hint="set slurm.shape: auto or hetjob, or give all roles the same partition, constraint and gpu_type",
    )
