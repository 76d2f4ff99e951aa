"""Roles to node-local GPU sets and ranks: first fit over nodes, in the order of the roles.

A role's GPUs on a node are one set, and each rank takes neighbouring GPUs of it: a tensor-parallel
group never crosses a node. Sets of two roles overlap only where one says `share_with`; it then uses
the first GPUs of the other's set. Roles on CPUs start at node 0 and count no capacity. Which GPUs of a node
a set gets is `topology`'s choice where the node is known; else they follow each other. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.plan import topology
from hpcflow.plan.plan import RankPlan, RolePlan
from hpcflow.plan.topology import Sets
from hpcflow.spec.roles import Placed, gpus_key, table_of
from hpcflow.spec.run import RunSpec
from hpcflow.spec.topology import NodeTopology


def place(
    spec: RunSpec, islands: Sequence[Sequence[str]], nodes: NodeTopology | None = None
) -> tuple[RolePlan, ...]:
    """Every role of the run, placed; roles of different islands never share a node.

    Raises:
        SpecErrors: a role needs more GPUs of a node than a node has.
    """
    present = spec.present()
    _refuse_too_large(spec, present)
    sets: dict[str, Sets] = {}
    first = 0
    for names in islands:
        own = _own_sets({name: present[name] for name in names}, spec.slurm.gpus_per_node)
        own = topology.locate(own, present, spec, nodes)
        sets |= {name: {first + node: gpus for node, gpus in found.items()} for name, found in own.items()}
        first = 1 + max(node for found in sets.values() for node in found)
    for name, role in present.items():
        if role.share_with is not None:
            sets[name] = _shared_set(name, present, sets)
    roles = tuple(_role_plan(name, role, sets[name], spec) for name, role in present.items())
    check(roles)
    return roles


def _refuse_too_large(spec: RunSpec, present: dict[str, Placed]) -> None:
    capacity = spec.slurm.gpus_per_node
    on_gpus = {name: role for name, role in present.items() if role.on_gpus}
    if on_gpus and capacity == 0:
        problem = f"must say how many GPUs a node has, because {', '.join(on_gpus)} run on GPUs"
        raise SpecErrors([SpecError(spec.place("slurm.gpus_per_node"), problem, value="0")])
    faults = [
        SpecError(
            spec.place(gpus_key(name)),
            f"more than the {capacity} GPUs of a node",
            value=str(role.gpus_per_node),
            hint=f"use more nodes ({table_of(name)}.nodes), or correct slurm.gpus_per_node",
        )
        for name, role in on_gpus.items()
        if role.gpus_per_node > capacity
    ]
    if faults:
        raise SpecErrors(faults)


def _own_sets(present: dict[str, Placed], capacity: int) -> dict[str, Sets]:
    """GPU sets of the roles that share no other role's; nodes are opened as they are needed."""
    used: list[int] = []
    sets: dict[str, Sets] = {}
    for name, role in present.items():
        if role.share_with is not None:
            continue
        if not role.on_gpus:
            sets[name] = {node: () for node in range(role.nodes)}
            continue
        fitting = [node for node, count in enumerate(used) if count + role.gpus_per_node <= capacity]
        fresh = itertools.count(len(used))
        nodes = [*fitting, *itertools.islice(fresh, role.nodes)][: role.nodes]
        used += [0] * (max(nodes) + 1 - len(used))
        sets[name] = {node: tuple(range(used[node], used[node] + role.gpus_per_node)) for node in nodes}
        for node in nodes:
            used[node] += role.gpus_per_node
    return sets


def _shared_set(name: str, present: dict[str, Placed], sets: dict[str, Sets]) -> Sets:
    """The first GPUs of the set of the role that `name` shares with, chains followed."""
    role = present[name]
    if role.share_with is None:
        return sets[name]
    there = _shared_set(role.share_with, present, sets)
    nodes = list(there)[: role.nodes]
    return {node: there[node][: role.gpus_per_node] for node in nodes}


def _role_plan(name: str, role: Placed, sets: Sets, spec: RunSpec) -> RolePlan:
    width = role.gpus_per_rank
    ranks = [
        RankPlan(
            rank=position * role.ranks_per_node + local,
            node=node,
            local_rank=local,
            gpus=gpus[local * width : (local + 1) * width],
        )
        for position, (node, gpus) in enumerate(sets.items())
        for local in range(role.ranks_per_node)
    ]
    resources = spec.resources_of(name)
    return RolePlan(
        role=name,
        device="cuda" if spec.computes_on_gpus(role) else "cpu",
        nodes=tuple(sets),
        gpus_by_node=tuple(sets.values()),
        shares_with=role.share_with,
        ranks=tuple(ranks),
        cpus_per_rank=resources.cpus_per_rank,
        memory_gib_per_rank=resources.memory_gib_per_rank,
    )


def check(roles: Sequence[RolePlan]) -> None:
    """Assert what holds by construction: overlap is declared, ranks stay within their set."""
    owners = {role.role: owner(role, roles) for role in roles}
    for role in roles:
        sets = dict(zip(role.nodes, role.gpus_by_node, strict=True))
        for rank in role.ranks:
            assert set(rank.gpus) <= set(sets[rank.node]), (role.role, rank)
        for other in roles:
            if owners[role.role] == owners[other.role]:
                continue
            for node, gpus in zip(other.nodes, other.gpus_by_node, strict=True):
                assert node not in sets or not set(gpus) & set(sets[node]), (role.role, other.role)
    for role in roles:
        taken = [(rank.node, gpu) for rank in role.ranks for gpu in rank.gpus]
        assert len(taken) == len(set(taken)), role.role


def owner(role: RolePlan, roles: Sequence[RolePlan]) -> str:
    """The role at the end of a chain of sharing."""
    by_name = {other.role: other for other in roles}
    while role.shares_with is not None:
        role = by_name[role.shares_with]
    return role.role
