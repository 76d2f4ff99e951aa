"""The worker groups of a run, one per role, and how a batch is dealt out to the ranks of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hpcflow.roles.contract import CONTRACT_VERSION, TokenBatch
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.group import WorkerGroup
from hpcflow.spec.roles import RoleName
from hpcflow.spec.run import RunSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Groups:
    """One worker group per role; a run without KL has no reference."""

    actor: WorkerGroup
    critic: WorkerGroup
    reference: WorkerGroup | None
    reward: WorkerGroup
    rollout: WorkerGroup

    @staticmethod
    def connect(control: ControlClient, token: str, spec: RunSpec) -> Groups:
        """Wait until all ranks are ready, then connect to each.

        Raises:
            JobFault: a rank was not ready in time; names it.
        """
        endpoints = control.await_endpoints(spec.health.start_timeout_s, contract_version=CONTRACT_VERSION)
        timeout_s = spec.communication.call_timeout_s

        def group(role: RoleName) -> WorkerGroup:
            return WorkerGroup(role, endpoints[role], token=token, timeout_s=timeout_s)

        return Groups(
            actor=group("actor"),
            critic=group("critic"),
            reference=group("reference") if "reference" in endpoints else None,
            reward=group("reward"),
            rollout=group("rollout"),
        )

    def every(self) -> list[WorkerGroup]:
        """All groups that exist."""
        groups = (self.actor, self.critic, self.reference, self.reward, self.rollout)
        return [group for group in groups if group is not None]

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory by `role.rank`, as of each rank's latest reply."""
        return {
            f"{group.role}.{rank}": size
            for group in self.every()
            for rank, size in group.resident_bytes.items()
        }


def deal(items: Sequence[T], world_size: int) -> list[list[T]]:
    """Cut a sequence into `world_size` runs of nearly equal length, in order."""
    bounds = np.linspace(0, len(items), world_size + 1).round().astype(int)
    return [list(items[a:b]) for a, b in pairwise(bounds)]


def deal_rows(batch: TokenBatch, world_size: int) -> list[TokenBatch]:
    """Cut a batch by rows, as `deal` does."""
    return [take_rows(batch, part) for part in deal(range(len(batch.tokens)), world_size)]


def take_rows(batch: TokenBatch, index: Sequence[int]) -> TokenBatch:
    """The given rows, in the given order."""
    rows = np.asarray(index, dtype=np.int64)
    return TokenBatch(batch.tokens[rows], batch.lengths[rows], batch.mask[rows])
