"""Sentences about GPU sets that are not near together, for whoever reads a plan. Pure; chooses nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcflow.plan.plan import Component, RolePlan, ranges
from hpcflow.plan.topology import best_level, obstacle, straddles
from hpcflow.spec.run import RunSpec
from hpcflow.spec.topology import Level, NodeTopology


def warnings(
    spec: RunSpec,
    topology: NodeTopology | None,
    roles: Sequence[RolePlan],
    components: Sequence[Component],
) -> tuple[str, ...]:
    """What straddles, role by role, then of which nodes nothing is known.

    Empty where the spec names no topology: nothing is known then, and nothing was promised.
    """
    if topology is None:
        return ()
    found: list[str] = []
    unknown: list[str] = []
    for component in components:
        members = [role for role in roles if role.role in component.roles]
        reason = obstacle(spec, component.roles, component.gpus_per_node)
        if reason:
            on_gpus = ", ".join(role.role for role in members if any(role.gpus_by_node))
            unknown.append(f"{on_gpus}: it is not known whether GPU sets straddle: {reason}")
            continue
        for role in members:
            found += _of_role(topology, role)
    return (*found, *unknown)


def _of_role(topology: NodeTopology, role: RolePlan) -> Iterator[str]:
    """A straddling group is said, and not its set, which cannot be nearer."""
    groups: dict[int, list[tuple[int, ...]]] = {node: [] for node in role.nodes}
    for rank in role.ranks:
        groups[rank.node].append(rank.gpus)
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for node, gpus in zip(role.nodes, role.gpus_by_node, strict=True):
        alike.setdefault((gpus, *groups[node]), []).append(node)
    places: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for (gpus, *parts), nodes in alike.items():
        far = [group for group in parts if straddles(topology, group)]
        for group in far:
            places.setdefault(("one rank's", group), []).extend(nodes)
        if not far and straddles(topology, gpus):
            places.setdefault(("its", gpus), []).extend(nodes)
    for (whose, gpus), nodes in places.items():
        where = f"{'nodes' if len(nodes) > 1 else 'node'} {ranges(nodes)}"
        numbers = ",".join(str(gpu) for gpu in sorted(gpus))
        yield f"{role.role}: {whose} GPUs {numbers} on {where} {_how(topology, gpus)}; {_why(topology, gpus)}"


def _how(topology: NodeTopology, gpus: Sequence[int]) -> str:
    numa = sorted({node for node in (topology.numa[gpu] for gpu in gpus) if node is not None})
    level = topology.level(gpus)
    unlinked = "are not all joined by NVLink"
    if level <= Level.NUMA:
        return unlinked
    crossed = " and ".join(str(node) for node in numa)
    crossing = f"cross NUMA nodes {crossed}" if len(numa) > 1 else "cross NUMA nodes or sockets"
    within = " of one socket" if level == Level.SOCKET else ""
    return f"{crossing}{within} and {unlinked}"


def _why(topology: NodeTopology, gpus: Sequence[int]) -> str:
    if best_level(topology, len(gpus)) < topology.level(gpus):
        return "other roles hold the GPUs that would be nearer"
    return f"no {len(gpus)} GPUs of such a node are nearer"
