"""A plan against what the controller knows of its cluster: refuse what would never start.

`sbatch` takes a job that asks for more nodes than there are, for more time than its partition gives, or for
two components that cannot have nodes of their own at once, and leaves it pending for ever. Pure. Counts all
nodes that are configured, also those that are down: Slurm waits for them, too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcflow.errors import ClusterError
from hpcflow.plan.plan import Component, Plan
from hpcflow.slurm.nodes import expand
from hpcflow.slurm.partitions import NodeGroup, Partition
from hpcflow.spec.roles import table_of
from hpcflow.spec.run import RunSpec

# Features joined by one kind of operator; any other constraint is left to Slurm.
_FEATURE = r"[\w.-]+"
_ALL_OF = re.compile(rf"{_FEATURE}(?:&{_FEATURE})*")
_ONE_OF = re.compile(rf"{_FEATURE}(?:\|{_FEATURE})+")


@dataclass(frozen=True)
class Checked:
    """What is asked of this cluster, and sentences that a person should read."""

    plan: Plan
    warnings: tuple[str, ...]


def check(spec: RunSpec, plan: Plan, partitions: Mapping[str, Partition]) -> Checked:
    """The plan, its CPUs rounded up to whole cores where the nodes have several threads on each.

    Raises:
        ClusterError: everything for which the job would wait for ever, each with the key to change.
    """
    faults: list[str] = []
    warnings: list[str] = []
    components, fitting = [], []
    for component in plan.components:
        one = _One(spec, component, partitions)
        one.look(plan)
        faults += one.faults
        warnings += one.warnings
        components.append(one.component)
        fitting.append(one.fitting)
    if not faults:
        faults += _same_nodes(spec, components) or _no_room_together(spec, components, fitting)
    if faults:
        hint = (
            "nothing was submitted; `hpcflow plan` shows what each node is asked for, `sinfo` what there is"
        )
        raise ClusterError("this cluster cannot run the job:\n" + "\n".join(faults), hint=hint)
    return Checked(replace(plan, components=tuple(components)), tuple(dict.fromkeys(warnings)))


class _One:
    """One component on one cluster; `fitting` are names of the nodes that it can be given."""

    def __init__(self, spec: RunSpec, component: Component, partitions: Mapping[str, Partition]) -> None:
        self.component = component
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self.fitting: frozenset[str] = frozenset()
        self._spec = spec
        self._all = partitions

    def look(self, plan: Plan) -> None:
        """Find faults and warnings; a fault of one kind hides those that follow from it."""
        named = self._named()
        usable = self._within_limits(named) if named else []
        if not usable:
            return
        groups = list({group.names: group for partition in usable for group in partition.groups}.values())
        self._whole_cores(plan, groups)
        where = ", ".join(partition.name for partition in usable)
        if not self._one_node(groups, where) or not self._features(groups, where):
            return
        fitting = [group for group in groups if fits(group, self.component)]
        self.fitting = frozenset(name for group in fitting for name in group.names)
        found_before = len(self.fitting)
        self.fitting -= _excluded(self._spec)
        needed, found = len(self.component.nodes), len(self.fitting)
        if found < needed <= found_before:
            self._fault(
                "slurm.options.exclude",
                f"{self._who()} takes {needed} nodes, and {found} that fit it are left in partition {where}",
            )
            return
        if needed > found:
            self._fault(
                self._nodes_key(),
                f"{self._who()} takes {needed} nodes that fit it, and partition {where} has {found}",
            )
            return
        up = len(self.fitting & {name for group in fitting if group.up for name in group.names})
        if up < needed:
            self.warnings.append(
                f"{self._who()} takes {needed} nodes: of the {found} in partition {where}, {up} are up now"
            )

    def _named(self) -> list[Partition]:
        """The partitions that the component may run in."""
        everything = ", ".join(sorted(self._all)) or "none"
        if self.component.partition is None:
            named = [partition for partition in self._all.values() if partition.default]
            if not named:
                problem = f"must be set, as there is no default; there are: {everything}"
                self._fault(self._key("partition"), problem)
        else:
            names = self.component.partition.split(",")
            unknown = [repr(name) for name in names if name not in self._all]
            if unknown:
                problem = f"no partition {', '.join(unknown)}; there are: {everything}"
                self._fault(self._key("partition"), problem)
                return []
            named = [self._all[name] for name in names]
        down = [partition.name for partition in named if not partition.up]
        if down:
            self.warnings.append(f"partition {', '.join(down)} is not up now: the job waits until it is")
        return named

    def _within_limits(self, named: Sequence[Partition]) -> list[Partition]:
        """Partitions whose limits on time and on nodes of a job leave room; one is enough for Slurm."""
        minutes, nodes = self._spec.slurm.time_minutes, len(self.component.nodes)
        in_time = [one for one in named if one.max_minutes is None or minutes <= one.max_minutes]
        if not in_time:
            limits = ", ".join(f"{one.max_minutes} in {one.name}" for one in named)
            self._fault("slurm.time_minutes", f"{minutes} minutes are more than a job may take: {limits}")
        small = [one for one in in_time if one.max_nodes is None or nodes <= one.max_nodes]
        if in_time and not small:
            limits = ", ".join(f"{one.max_nodes} in {one.name}" for one in in_time)
            self._fault(
                self._nodes_key(), f"{self._who()} takes {nodes} nodes, more than a job may have: {limits}"
            )
        return small

    def _whole_cores(self, plan: Plan, groups: Sequence[NodeGroup]) -> None:
        """Each step takes whole cores; without room for that the last step would wait for ever."""
        asked = self.component.cpus_per_node
        threads = max((group.threads_per_core for group in groups), default=1)
        if threads == 1:
            return
        taken = max(cpus_in_whole_cores(plan, node, threads) for node in self.component.nodes)
        needed = max(taken, _whole(asked, threads))
        if needed > asked:
            self.component = replace(self.component, cpus_per_node=needed)
        if taken > _whole(asked, threads):
            self.warnings.append(
                f"nodes have {threads} threads on a core, and each step takes whole cores: {self._who()} "
                f"asks for {needed} CPUs of a node, not {asked}; make cpus_per_rank a multiple of {threads}"
            )

    def _one_node(self, groups: Sequence[NodeGroup], where: str) -> bool:
        """Whether some node has enough of each thing, one by one."""
        wanted, before = self.component, len(self.faults)
        kinds = sorted({name for group in groups for name in group.gpus if name})
        gpus = [gpus_of(group, wanted.gpu_type) for group in groups]
        most = {
            "GPUs": (max(gpus, default=0), wanted.gpus_per_node, self._gpus_key()),
            "CPUs": (max((one.cpus for one in groups), default=0), wanted.cpus_per_node, "slurm.resources"),
            "MiB of memory": (
                max((one.memory_mib for one in groups), default=0),
                wanted.memory_mib_per_node,
                "slurm.resources",
            ),
        }
        if wanted.gpus_per_node and wanted.gpu_type is not None and not most["GPUs"][0]:
            there = ", ".join(kinds) or "none with a type"
            self._fault(
                self._key("gpu_type"),
                f"no node of partition {where} has GPUs of type {wanted.gpu_type}; there are: {there}",
            )
            return False
        for what, (has, asks, key) in most.items():
            if asks > has:
                self._fault(
                    key,
                    f"{self._who()} asks for {asks} {what} of a node; at most {has} are in partition {where}",
                )
        return len(self.faults) == before

    def _features(self, groups: Sequence[NodeGroup], where: str) -> bool:
        """Whether some node has what the constraint names."""
        constraint = self.component.constraint
        if any(_has_features(group.features, constraint) for group in groups):
            return True
        there = ", ".join(sorted(set().union(*(group.features for group in groups)))) or "none"
        problem = f"no node of partition {where} has {constraint}; there are: {there}"
        self._fault(self._key("constraint"), problem)
        return False

    def _fault(self, key: str, problem: str) -> None:
        self.faults.append(f"{self._spec.place(key)}: {problem}")

    def _who(self) -> str:
        return "+".join(self.component.roles)

    def _key(self, name: str) -> str:
        """`partition` or `gpu_type`, where it was said for a role of this component or for all."""
        for role in self.component.roles:
            own = self._spec.resources_of(role)
            stated = {"partition": own.partition, "constraint": own.constraint, "gpu_type": own.gpu_type}
            if stated[name] is not None:
                return f"{self._spec.resources_key(role)}.{name}"
        return f"slurm.{name}"

    def _nodes_key(self) -> str:
        present = self._spec.present()
        return f"{table_of(max(self.component.roles, key=lambda role: present[role].nodes))}.nodes"

    def _gpus_key(self) -> str:
        return "slurm.gpus_per_node"


def cpus_in_whole_cores(plan: Plan, node: int, threads: int) -> int:
    """CPUs that all steps of a node take, each rounded up to whole cores."""
    return sum(_whole(step.cpus_per_node, threads) for step in plan.job_steps if node in step.nodes)


def _whole(cpus: int, threads: int) -> int:
    return math.ceil(cpus / threads) * threads


def gpus_of(group: NodeGroup, gpu_type: str | None) -> int:
    """GPUs of a node that a job may ask for by this type, or without one."""
    return group.gpus_per_node if gpu_type is None else group.gpus.get(gpu_type, 0)


def fits(group: NodeGroup, component: Component) -> bool:
    """Whether a node has all that is asked of it at once."""
    return (
        group.cpus >= component.cpus_per_node
        and group.memory_mib >= component.memory_mib_per_node
        and gpus_of(group, component.gpu_type if component.gpus_per_node else None) >= component.gpus_per_node
        and _has_features(group.features, component.constraint)
    )


def _has_features(features: Iterable[str], constraint: str | None) -> bool:
    if constraint is not None and _ALL_OF.fullmatch(constraint):
        return set(constraint.split("&")) <= set(features)
    if constraint is not None and _ONE_OF.fullmatch(constraint):
        return bool(set(constraint.split("|")) & set(features))
    return True


def _excluded(spec: RunSpec) -> frozenset[str]:
    """Nodes that the job is not to have; a list in a file, or one that Slurm may refuse, is left to Slurm."""
    listed = spec.slurm.options.get("exclude")
    if not isinstance(listed, str) or "/" in listed:
        return frozenset()
    try:
        return frozenset(expand(listed))
    except ClusterError:
        return frozenset()


def _same_nodes(spec: RunSpec, components: Sequence[Component]) -> list[str]:
    """Every component gets the options, and a node that each of them must have can be given to one only."""
    if len(components) == 1 or not spec.slurm.options.get("nodelist"):
        return []
    return [
        f"{spec.place('slurm.options.nodelist')}: the job has {len(components)} components, which never "
        "share a node: the same nodes cannot be asked for in each; use constraint or partition of the roles"
    ]


def _no_room_together(
    spec: RunSpec, components: Sequence[Component], fitting: Sequence[frozenset[str]]
) -> list[str]:
    """Components never share a node: any of them need as many nodes as fit one of them (Hall's theorem)."""
    numbers = range(len(components))
    for count in range(2, len(components) + 1):
        for chosen in itertools.combinations(numbers, count):
            needed = sum(len(components[number].nodes) for number in chosen)
            found = len(frozenset().union(*(fitting[number] for number in chosen)))
            if needed > found:
                who = ", ".join("+".join(components[number].roles) for number in chosen)
                return [
                    f"{spec.place('slurm.shape')}: {who} are components, which never share a node: they take "
                    f"{needed} nodes, and only {found} fit; use fewer nodes, or slurm.shape: steps"
                ]
    return []
