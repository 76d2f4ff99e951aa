"""Which GPUs of a node a role's set gets, where the node's topology is known, and where that is not enough.

A set is to stay within one NVLink clique, else one NUMA node, else one socket, and so is the tensor-parallel
group of each of its ranks. Roles choose in their order; another order is taken only where it keeps more sets
together. Numbers of GPUs mean places on a node only where a job takes whole nodes: elsewhere Slurm chooses
which GPUs it grants, so nothing is chosen here and the plan says so. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from hpcflow.spec.roles import Placed
from hpcflow.spec.run import RunSpec
from hpcflow.spec.slurm import NodeKind
from hpcflow.spec.topology import Level, NodeTopology

# GPU numbers by node number, in the order in which a role uses its nodes.
Sets = dict[int, tuple[int, ...]]

# Above so many GPUs a node, not all orders of the roles are tried.
_ALL_ORDERS = 16


class Want(NamedTuple):
    """A set to be found on a node: `size` GPUs, of which each `width` neighbours are one group."""

    size: int
    width: int


class _Cost(NamedTuple):
    """What an arrangement is judged by, first things first; less is better."""

    straddling: int
    groups: int
    sets: int

    def plus(self, other: _Cost) -> _Cost:
        return _Cost(*(one + more for one, more in zip(self, other, strict=True)))


def locate(
    own: Mapping[str, Sets],
    present: Mapping[str, Placed],
    spec: RunSpec,
    topology: NodeTopology | None,
) -> dict[str, Sets]:
    """The sets of an island again, on the same nodes and as large, by GPUs that are near each other.

    `own` are sets by first fit; they stay as they are where nothing is known of the nodes.
    """
    fullest = max((gpu + 1 for sets in own.values() for gpus in sets.values() for gpu in gpus), default=0)
    if topology is None or obstacle(spec, tuple(own), fullest):
        return dict(own)
    widths = {name: _width(name, present) for name in own}
    found = {name: dict(sets) for name, sets in own.items()}
    arranged: dict[tuple[Want, ...], tuple[tuple[int, ...], ...]] = {}
    for node in dict.fromkeys(node for sets in own.values() for node in sets):
        names = [name for name, sets in own.items() if sets.get(node)]
        wants = tuple(Want(len(own[name][node]), widths[name]) for name in names)
        if wants not in arranged:
            arranged[wants] = arrange(topology, wants)
        for name, gpus in zip(names, arranged[wants], strict=True):
            found[name][node] = gpus
    return found


def _width(name: str, present: Mapping[str, Placed]) -> int:
    """GPUs of the widest rank on the set of `name`: sharers have their groups on it, too."""
    sharers = [name]
    for sharer in sharers:
        sharers += [other for other, role in present.items() if role.share_with == sharer]
    return max(present[sharer].gpus_per_rank for sharer in sharers)


def takes_whole_nodes(spec: RunSpec) -> bool:
    """Whether the job gets all GPUs of its nodes, however few its roles need."""
    return spec.slurm.topology is not None and spec.slurm.options.get("exclusive") is True


def obstacle(spec: RunSpec, names: Sequence[str], gpus_per_node: int) -> str:
    """Why nothing is known of the nodes of these roles, which ask for `gpus_per_node`; empty: it is known."""
    if gpus_per_node == 0:
        return ""
    slurm = spec.slurm
    kind, described = spec.node_kind(names[0]), NodeKind(slurm.partition, slurm.constraint, slurm.gpu_type)
    if kind != described:
        return f"slurm.topology is about other nodes ({described}) than theirs ({kind})"
    if gpus_per_node < slurm.gpus_per_node and not takes_whole_nodes(spec):
        part = f"the job takes {gpus_per_node} of the {slurm.gpus_per_node} GPUs of a node"
        return f"{part}, so Slurm chooses which (slurm.options.exclusive: true takes whole nodes)"
    return ""


def arrange(topology: NodeTopology, wants: tuple[Want, ...]) -> tuple[tuple[int, ...], ...]:
    """Disjoint sets on an empty node, one for each want; the neighbours in a set are its groups.

    The wants choose one after the other, in the order that keeps most sets together: the given one if it
    is as good as any, else the larger ones first, else any other. The sum of sizes fits the node.
    """
    least = _Cost(0, 0, 0)
    for want in wants:
        least = least.plus(_cost(topology, want, _nearest(topology, _every(topology), want)))
    best: tuple[_Cost, tuple[tuple[int, ...], ...]] | None = None
    for order in _orders(wants, everything=len(topology.numa) <= _ALL_ORDERS):
        free = _every(topology)
        sets: dict[int, tuple[int, ...]] = {}
        cost = _Cost(0, 0, 0)
        for index in order:
            sets[index] = _nearest(topology, free, wants[index])
            free = tuple(gpu for gpu in free if gpu not in sets[index])
            cost = cost.plus(_cost(topology, wants[index], sets[index]))
        if best is None or cost < best[0]:
            best = cost, tuple(sets[index] for index in range(len(wants)))
        if cost == least:
            break
    assert best is not None
    return best[1]


def _every(topology: NodeTopology) -> tuple[int, ...]:
    return tuple(range(len(topology.numa)))


def _orders(wants: Sequence[Want], *, everything: bool) -> Iterator[tuple[int, ...]]:
    yield tuple(range(len(wants)))
    yield tuple(sorted(range(len(wants)), key=lambda index: -wants[index].size))
    if everything:
        yield from itertools.permutations(range(len(wants)))


def _cost(topology: NodeTopology, want: Want, gpus: Sequence[int]) -> _Cost:
    groups = _groups(gpus, want.width)
    straddling = sum(straddles(topology, group) for group in groups) + straddles(topology, gpus)
    return _Cost(straddling, _worst(topology, groups), topology.level(gpus))


def _groups(gpus: Sequence[int], width: int) -> list[tuple[int, ...]]:
    return [tuple(gpus[start : start + width]) for start in range(0, len(gpus), width)]


def _worst(topology: NodeTopology, groups: Sequence[Sequence[int]]) -> Level:
    return max((topology.level(group) for group in groups), default=Level.NVLINK_IN_NUMA)


@lru_cache(maxsize=1024)
def _nearest(topology: NodeTopology, free: tuple[int, ...], want: Want) -> tuple[int, ...]:
    """The set that keeps its groups, then itself, nearest, then breaks up the least of what is left."""
    found = []
    for seed in _different(topology, free):
        gpus = _grown(topology, free, want, seed)
        left = [gpu for gpu in free if gpu not in gpus]
        farthest = [max(topology.levels[gpu][taken] for taken in gpus) for gpu in left]
        broken = tuple(sum(far <= level for far in farthest) for level in Level)
        groups = _groups(gpus, want.width)
        found.append((_worst(topology, groups), topology.level(gpus), broken, seed, gpus))
    return min(found)[-1]


def _grown(topology: NodeTopology, free: Sequence[int], want: Want, seed: int) -> tuple[int, ...]:
    """A set around `seed`, group by group, each as near to itself and then to the set as can be."""
    gpus: tuple[int, ...] = ()
    while len(gpus) < want.size:
        left = [gpu for gpu in free if gpu not in gpus]
        size = min(want.width, want.size - len(gpus))
        starts = _different(topology, left) if gpus else [seed]
        groups = [_group(topology, left, size, start, gpus) for start in starts]
        gpus += min(groups, key=partial(_apart, topology, gpus))
    return gpus


def _apart(topology: NodeTopology, gpus: Sequence[int], group: tuple[int, ...]) -> tuple[object, ...]:
    """How far a group is from itself, then from GPUs that were taken; last, its numbers."""
    farthest = max((topology.levels[one][other] for one in group for other in gpus), default=0)
    return topology.level(group), farthest, group


def _group(
    topology: NodeTopology, free: Sequence[int], size: int, start: int, near: Sequence[int]
) -> tuple[int, ...]:
    """`size` of the free GPUs, with `start` among them, near each other and then to `near`; sorted."""
    levels = topology.levels
    group = [start]
    while len(group) < size:
        left = [gpu for gpu in free if gpu not in group]
        group.append(
            min(
                left,
                key=lambda gpu: (
                    max(levels[gpu][other] for other in group),
                    max((levels[gpu][other] for other in near), default=Level.NVLINK_IN_NUMA),
                    gpu,
                ),
            )
        )
    return tuple(sorted(group))


def _different(topology: NodeTopology, gpus: Sequence[int]) -> list[int]:
    """The first of all GPUs that stand alike to every other one: to try the rest would change nothing."""
    twins = _twins(topology)
    firsts: dict[int, int] = {}
    for gpu in gpus:
        firsts.setdefault(twins[gpu], gpu)
    return list(firsts.values())


@lru_cache(maxsize=64)
def _twins(topology: NodeTopology) -> tuple[int, ...]:
    """For each GPU, the first one that is as far from every third GPU."""
    levels, every = topology.levels, range(len(topology.numa))

    def alike(one: int, other: int) -> bool:
        return all(levels[one][third] == levels[other][third] for third in every if third not in (one, other))

    return tuple(next(first for first in every if alike(first, gpu)) for gpu in every)


def straddles(topology: NodeTopology, gpus: Sequence[int]) -> bool:
    """Whether GPUs are joined by no NVLink and no NUMA node, or less well than as many of the node can be."""
    level = topology.level(gpus)
    return level > Level.NUMA or (level == Level.NUMA and best_level(topology, len(gpus)) < Level.NUMA)


@lru_cache(maxsize=256)
def best_level(topology: NodeTopology, count: int) -> Level:
    """The level of `count` GPUs that have the node to themselves."""
    return topology.level(_nearest(topology, _every(topology), Want(count, count)))
