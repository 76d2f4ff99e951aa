"""The plan: every rank, GPU set and batch size of a run, known before submission.

Frozen and JSON; holds no host names, so that a later attempt reuses it unchanged. Node and GPU
numbers are positions in what will be granted (0, 1, ...), never absolute indexes of a machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from hpcflow import atomic
from hpcflow.spec.roles import RoleName


@dataclass(frozen=True)
class RankPlan:
    """One process of a role."""

    rank: int
    node: int
    local_rank: int
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class RolePlan:
    """All processes of a role; `gpus_by_node[i]` is the role's GPU set on `nodes[i]`."""

    role: str
    device: Literal["cpu", "cuda"]
    nodes: tuple[int, ...]
    gpus_by_node: tuple[tuple[int, ...], ...]
    shares_with: str | None
    ranks: tuple[RankPlan, ...]
    cpus_per_rank: int
    memory_gib_per_rank: float

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True)
class JobStep:
    """What one `srun` starts, one node agent per node: the roles that share a GPU set.

    CPUs and memory are those of the step's fullest node; `component` is a position in `Plan.components`.
    """

    name: str
    component: int
    roles: tuple[str, ...]
    nodes: tuple[int, ...]
    gpus_per_node: int
    cpus_per_node: int
    memory_mib_per_node: int


@dataclass(frozen=True)
class Component:
    """Nodes of one kind: the whole job, or one component of a heterogeneous job.

    `nodes` are neighbouring numbers of the plan; CPUs, memory and GPUs are those of the fullest node. With
    `gpus_are_numbered` the plan's GPU numbers are those of the node, which the job gets whole; otherwise
    they are places among what Slurm grants.
    """

    roles: tuple[str, ...]
    nodes: tuple[int, ...]
    partition: str | None
    constraint: str | None
    gpu_type: str | None
    gpus_per_node: int
    cpus_per_node: int
    memory_mib_per_node: int
    gpus_are_numbered: bool = False


@dataclass(frozen=True)
class Shape:
    """How the run becomes a Slurm job: why so, and at what price."""

    kind: Literal["steps", "hetjob"]
    reason: str
    price: str


@dataclass(frozen=True)
class TrainBatching:
    """Batch sizes of one trained role, per training step.

    `minibatch_samples` rows (global) make one optimizer step; each rank handles
    `rank_minibatch_samples` of them in `accumulation` micro-batches of `microbatch_per_gpu` rows.
    """

    minibatch_samples: int
    rank_minibatch_samples: int
    microbatch_per_gpu: int
    accumulation: int
    optimizer_steps_per_step: int
    optimizer_steps_total: int


@dataclass(frozen=True)
class Batching:
    """Batch sizes of one training step, global unless the name says otherwise."""

    prompts_per_step: int
    samples_per_prompt: int
    samples_per_step: int
    epochs: int
    minibatches_per_epoch: int
    max_prompt_tokens: int
    max_response_tokens: int
    max_sequence_tokens: int
    actor: TrainBatching
    critic: TrainBatching


@dataclass(frozen=True)
class WeightRoute:
    """Weights go from rank 0 of `sender` to every rank of `receiver`, by `backend`."""

    backend: Literal["gloo"]
    sender: RoleName
    receiver: RoleName
    group_size: int


@dataclass(frozen=True)
class Plan:
    """What will run; `warnings` are sentences for a person, and change nothing."""

    name: str
    steps: int
    nodes: int
    gpus_per_node: int
    roles: tuple[RolePlan, ...]
    shape: Shape
    components: tuple[Component, ...]
    job_steps: tuple[JobStep, ...]
    batching: Batching
    weights: WeightRoute
    warnings: tuple[str, ...] = ()

    def role(self, name: str) -> RolePlan:
        """The plan of one role; KeyError where the run has no such role."""
        for role in self.roles:
            if role.role == name:
                return role
        raise KeyError(name)

    def save(self, path: Path) -> None:
        """Publish as JSON."""
        atomic.write_json(path, msgspec.to_builtins(self))

    @staticmethod
    def load(path: Path) -> Plan:
        """Read what `save` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=Plan)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers of nodes for people: `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
