"""What the partitions of a cluster offer, by one answer of `sinfo`: enough to refuse what never fits.

Counts what is configured, also nodes that are down now: they may come back. `up` tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hpcflow.errors import ClusterError
from hpcflow.slurm.commands import WRAPPED
from hpcflow.slurm.nodes import expand

# One line for nodes that are alike: partition, the same with a star if it is the default, availability, time
# limit, nodes per job, state, cores, threads per core, MiB, node list, features, generic resources.
FORMAT = "%R|%P|%a|%l|%s|%T|%c|%Z|%m|%N|%f|%G"
COMMAND = ("sinfo", "--noheader", "--all", "--exact", "--format", FORMAT)

# Symbols after a state: not responding, powered down or up, in maintenance, reserved ...
_MARKS = "*~#!%$@^-+"
_UP = frozenset(
    {"idle", "mixed", "allocated", "completing", "planned", "reserved", "powering_up", "powered_down"}
)
_GPU = re.compile(
    r"(?:^|,)gpu(?::(?P<type>[^:,()]*[^:,()0-9][^:,()]*))?:(?P<count>[0-9]+)(?:\([^)]*\))?(?=,|$)"
)
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+)(?::(?P<seconds>\d+))")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike; `cpus` are hardware threads, `gpus` how many of each type (`""`: no type)."""

    names: tuple[str, ...]
    state: str
    cpus: int
    threads_per_core: int
    memory_mib: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()

    @property
    def up(self) -> bool:
        """Whether the nodes can run jobs, now or when they are free."""
        return not self.state.endswith("*") and self.state.rstrip(_MARKS).lower() in _UP

    @property
    def gpus_per_node(self) -> int:
        """GPUs of all types."""
        return sum(self.gpus.values())


@dataclass(frozen=True)
class Partition:
    """A partition; `max_minutes` and `max_nodes` (per job) are None where there is no limit."""

    name: str
    default: bool
    up: bool
    max_minutes: int | None
    max_nodes: int | None
    groups: tuple[NodeGroup, ...]

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Names of all its nodes: partitions overlap, so sums are wrong where unions are meant."""
        return frozenset(name for group in self.groups for name in group.names)

    @property
    def features(self) -> tuple[str, ...]:
        """What a constraint may name, sorted."""
        return tuple(sorted({name for group in self.groups for name in group.features}))

    def least(self) -> NodeGroup | None:
        """The least that every node has, in a group of no names; None where there is no node."""
        if not self.groups:
            return None
        types = {name for group in self.groups for name in group.gpus}
        gpus = {name: min(group.gpus.get(name, 0) for group in self.groups) for name in types}
        return NodeGroup(
            names=(),
            state="",
            cpus=min(group.cpus for group in self.groups),
            threads_per_core=max(group.threads_per_core for group in self.groups),
            memory_mib=min(group.memory_mib for group in self.groups),
            gpus={name: count for name, count in gpus.items() if count},
        )


def parse_partitions(output: str) -> dict[str, Partition]:
    """Partitions by name, out of what `COMMAND` wrote.

    Raises:
        ClusterError: a line is not as asked for.
    """
    found: dict[str, Partition] = {}
    for line in output.splitlines():
        if not line.strip() or line.startswith("CLUSTER: "):
            continue
        try:
            partition = _partition(line)
        except (ValueError, TypeError) as error:
            problem = f"sinfo wrote a line that cannot be read: {line!r} ({error})"
            raise ClusterError(problem, hint=WRAPPED) from error
        earlier = found.get(partition.name)
        groups = (*(earlier.groups if earlier else ()), *partition.groups)
        found[partition.name] = Partition(
            partition.name,
            partition.default,
            partition.up,
            partition.max_minutes,
            partition.max_nodes,
            groups,
        )
    return found


def parse_gpus(gres: str) -> dict[str, int]:
    """`gpu:h200:4(S:0-1),shard:8` as `{"h200": 4}`."""
    gpus: dict[str, int] = {}
    for match in _GPU.finditer(gres):
        gpus[match["type"] or ""] = gpus.get(match["type"] or "", 0) + int(match["count"])
    return gpus


def parse_minutes(text: str) -> int | None:
    """`1-00:00:00`, `10:00` (minutes and seconds) as whole minutes; None for `infinite`."""
    if text in ("infinite", "UNLIMITED", "n/a", "NONE"):
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return int(match["days"] or 0) * 1440 + int(match["hours"] or 0) * 60 + int(match["minutes"])


def _partition(line: str) -> Partition:
    """One line: a partition with at most one group."""
    name, starred, available, time, size, state, cpus, threads, memory, nodes, features, gres = line.split(
        "|"
    )
    most = size.split("-")[-1]
    group = NodeGroup(
        names=tuple(expand(nodes)),
        state=state,
        cpus=_count(cpus),
        threads_per_core=max(_count(threads), 1),
        memory_mib=_count(memory),
        gpus=parse_gpus(gres),
        features=frozenset() if features == "(null)" else frozenset(features.split(",")),
    )
    return Partition(
        name=name,
        default=starred == f"{name}*",
        up=available == "up",
        max_minutes=parse_minutes(time),
        max_nodes=None if most in ("infinite", "UNLIMITED") else _count(most),
        groups=(group,) if group.names else (),
    )


def _count(text: str) -> int:
    """A plus stands for "at least", where nodes of one line differ; large counts are written with K."""
    plain = text.rstrip("+")
    return int(float(plain[:-1]) * 1024) if plain.endswith("K") else int(plain)
