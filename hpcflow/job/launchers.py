"""How the processes of an attempt come to be: children of the supervisor, or steps of a Slurm job.

A launcher says what the supervisor is to start as its own children; it starts nothing. Locally these are the
driver and all ranks. On Slurm they are the driver and one `srun` per job step, whose node agents start the
ranks and tell of their ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from hpcflow.job import commands, steps
from hpcflow.job.processes import Children
from hpcflow.job.verdict import THE_DRIVER, Evidence, Member
from hpcflow.plan.plan import JobStep, Plan
from hpcflow.rpc.addresses import LOOPBACK, of_interface, of_name
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.signals import name_of
from hpcflow.slurm.client import SlurmClient
from hpcflow.slurm.env import Allocation, step_environment
from hpcflow.slurm.srun_messages import failure_in
from hpcflow.spec.run import RunSpec

# More than node agents leave to their ranks.
_SRUN_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Start:
    """One process that the supervisor is to start as its child."""

    member: Member
    argv: list[str]
    environ: dict[str, str]


class Launcher(Protocol):
    """What differs between a run on this host and a run on Slurm.

    `address` is where the supervisor binds. `hosts` is where each rank will be, as far as that is known
    before the rank says so. `steps` are the ranks that end with a step, by step.
    """

    address: str
    hosts: Mapping[Member, str]
    steps: Mapping[Member, tuple[Member, ...]]

    def starts(self, own: ProcessIdentity) -> list[Start]:
        """All children of the supervisor, whose identity is `own`."""

    def blame(self, step: Member, status: int, output: str, at: float) -> Evidence:
        """Why a step ended although its ranks had not; `output` is what it wrote."""

    def kill(self, children: Children) -> None:
        """End everything at once."""


class LocalLauncher:
    """Every rank is a child of the supervisor."""

    def __init__(self, plan: Plan, spec: RunSpec, command: commands.Command = commands.command_line) -> None:
        self.address = LOOPBACK
        self.hosts: Mapping[Member, str] = {}
        self.steps: Mapping[Member, tuple[Member, ...]] = {}
        self._plan = plan
        self._spec = spec
        self._command = command

    def starts(self, own: ProcessIdentity) -> list[Start]:
        """The driver and every rank."""
        gpus = commands.local_gpus(self._plan, os.environ)
        found = []
        for member, identity in commands.identities(self._plan, own).items():
            environ = commands.environment(member, self._plan, self._spec, base=os.environ, gpus=gpus)
            found.append(Start(member, self._command(member), {**environ, **identity.to_environ()}))
        return found

    def blame(self, step: Member, status: int, output: str, at: float) -> Evidence:
        """A local run has no steps."""
        raise AssertionError(step)

    def kill(self, children: Children) -> None:
        """Kill every child with all its descendants."""
        children.kill()


class SlurmLauncher:
    """The driver is a child of the supervisor; node agents in the steps start the ranks."""

    def __init__(self, plan: Plan, spec: RunSpec, hosts: steps.Hosts, address: str) -> None:
        """`hosts` are the nodes that were granted, `address` is the supervisor's on the first of them."""
        ranks = commands.ranks(plan)
        self.address = address
        self.hosts: Mapping[Member, str] = {
            **{member: hosts[rank.node] for member, _, rank in ranks},
            THE_DRIVER: hosts[0],
        }
        self.steps: Mapping[Member, tuple[Member, ...]] = {
            steps.member_of(step): tuple(member for member, role, _ in ranks if role.role in step.roles)
            for step in plan.job_steps
        }
        self._plan = plan
        self._spec = spec
        self._hosts = hosts
        self._killing_since = float("inf")

    @staticmethod
    def of_this_job(plan: Plan, spec: RunSpec) -> SlurmLauncher:
        """For the job that this process is in.

        Raises:
            UserError: this is no Slurm job, or the interface that the spec names is not here.
            ClusterError: the controller does not tell this node's address.
        """
        allocation = Allocation.from_environ(os.environ)
        hosts = steps.hosts_of(plan, allocation.nodes)
        if spec.communication.interface is not None:
            address = of_interface(spec.communication.interface)
        else:
            address = of_name(SlurmClient().node_address(hosts[0]))
        return SlurmLauncher(plan, spec, hosts, address)

    def starts(self, own: ProcessIdentity) -> list[Start]:
        """The driver, and one `srun` per step."""
        base = step_environment(os.environ)
        driver = replace(commands.identities(self._plan, own)[THE_DRIVER], host=self._hosts[0])
        environ = commands.environment(THE_DRIVER, self._plan, self._spec, base=base, gpus={})
        command = commands.command_line(THE_DRIVER)
        found = [Start(THE_DRIVER, command, {**environ, **driver.to_environ()})]
        for step in self._plan.job_steps:
            argv = steps.srun(step, self._plan, self._hosts, python=sys.executable)
            found.append(Start(steps.member_of(step), argv, {**base, **self._for_agents(step, own)}))
        return found

    def blame(self, step: Member, status: int, output: str, at: float) -> Evidence:
        """What Slurm wrote about the step, and the node that it named."""
        found = failure_in(output)
        (name,) = (known.name for known in self._plan.job_steps if steps.member_of(known) == step)
        if found is None:
            how = f"ended with exit code {status}" if status >= 0 else f"was ended by {name_of(-status)}"
            message = f"step {name} {how} while its ranks were at work"
            return Evidence(step, "step_failed", message, at, "its log may say more")
        where = f" on {found.node}" if found.node else ""
        message = f"step {name} failed{where}: {found.message}"
        return Evidence(step, "step_failed", message, at, found.hint, host=found.node or "")

    def kill(self, children: Children) -> None:
        """TERM makes `srun` kill all processes of its step; everything else is ours to kill.

        It asks the controller to, and waits for it. Where that does not answer, agents end their ranks by
        themselves, and then nothing is lost by killing `srun`. Called again and again until all have ended.
        """
        now = time.monotonic()
        self._killing_since = min(self._killing_since, now)
        if now - self._killing_since > _SRUN_PATIENCE_S:
            children.kill()
            return
        children.send(signal.SIGTERM, lambda member: member in self.steps)
        children.kill(lambda member: member not in self.steps)

    def _for_agents(self, step: JobStep, own: ProcessIdentity) -> dict[str, str]:
        """What the node agents of a step need to know; each finds its own place by its node's name."""
        member = steps.member_of(step)
        identity = replace(own, role=member.role, world_size=len(step.nodes), parent=None, address="")
        nodes = ",".join(self._hosts[node] for node in step.nodes)
        return {**identity.to_environ(), steps.STEP: step.name, steps.STEP_NODES: nodes}
