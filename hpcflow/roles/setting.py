"""What a role process is told: who it is, the spec and the plan of its run.

Read once at start; nothing here changes afterwards. A rank waits for rank 0 of its role in `join_group`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcflow.plan.plan import Plan, RolePlan
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rundir import RunDir
from hpcflow.spec.load import load_resolved
from hpcflow.spec.roles import RoleName
from hpcflow.spec.run import RunSpec


@dataclass(frozen=True)
class RoleSetting:
    """Everything that a role's constructor needs."""

    role: RoleName
    identity: ProcessIdentity
    control: ControlClient
    spec: RunSpec
    plan: Plan

    @staticmethod
    def read(role: RoleName, identity: ProcessIdentity, control: ControlClient) -> RoleSetting:
        """From the run folder."""
        run = RunDir(identity.run_dir)
        return RoleSetting(
            role=role,
            identity=identity,
            control=control,
            spec=load_resolved(run.spec_json),
            plan=Plan.load(run.plan_json),
        )

    @property
    def role_plan(self) -> RolePlan:
        """The plan of this role."""
        return self.plan.role(self.role)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """`cpu`, or `cuda`: a rank sees its own GPUs only, so its device is the first one."""
        return self.role_plan.device

    def join_group(self) -> None:
        """Join the process group of this role's ranks; rank 0 chooses the port and tells the others.

        Raises:
            JobFault: the group did not form within the collective time-out.
        """
        from hpcflow.roles import rendezvous

        identity, timeout_s = self.identity, self.spec.communication.collective_timeout_s
        store = None
        if identity.rank == 0:
            store, port = rendezvous.open_store(identity.address, timeout_s=timeout_s)
            address = identity.address
            self.control.offer_rendezvous(address, port)
        else:
            address, port = self.control.await_rendezvous(timeout_s)
        spot = rendezvous.GroupSpot(
            address=address,
            port=port,
            rank=identity.rank,
            # A rank sees its own GPUs only: whatever its place on the node, its device is the first.
            local_rank=0,
            world_size=identity.world_size,
        )
        backend = self.spec.communication.collectives
        rendezvous.join(spot, backend=backend, timeout_s=timeout_s, store=store)
