"""Weights from actor to rollout: the driver starts a transfer and waits, the weights go past it.

All ranks of both roles are in the transfer; none generates or trains meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcflow.driver.clock import StepClock
from hpcflow.driver.groups import Groups
from hpcflow.plan.plan import WeightRoute
from hpcflow.roles import contract
from hpcflow.roles.contract import Empty, WeightsOpen, WeightsVersion
from hpcflow.rpc.group import wait


@dataclass(frozen=True)
class WeightPublisher:
    """Opens the weight group once, then publishes a version after each step."""

    groups: Groups
    route: WeightRoute
    tensor_parallel: int

    def open(self) -> None:
        """Form the group: the actor's rank 0 listens, then all ranks join at the same time."""
        ports = self.groups.actor.call(contract.Actor.listen_weights, Empty())
        sender = ports[0]

        def join(rank: int) -> WeightsOpen:
            return WeightsOpen(sender.address, sender.port, rank, self.route.group_size)

        receivers = [
            join(1 + index * self.tensor_parallel) for index in range(self.groups.rollout.world_size)
        ]
        actor = self.groups.actor.start(contract.Actor.open_weights, join(0))
        rollout = self.groups.rollout.start(contract.Rollout.open_weights, receivers)
        wait(actor, rollout)

    def publish(self, version: int, clock: StepClock) -> None:
        """Every rollout rank has the weights of `version` once this returns."""
        request = WeightsVersion(version)
        with clock.phase("weights"):
            rollout = self.groups.rollout.start(contract.Rollout.receive_weights, request)
            actor = self.groups.actor.start(contract.Actor.send_weights, request)
            clock.wait(actor, rollout)
