"""`python -m hpcflow.job.node_agent`: one per step and node; starts the step's ranks there and watches them.

Started by `srun`, which cannot start several roles on one GPU set and blurs exit codes. Gives each rank its
GPUs out of those that Slurm granted to the step, which need not be the ones that the plan numbers. Tells
the supervisor of every rank that ends; judges and restarts nothing. Leaves when the supervisor releases it
and its ranks are gone; whatever is left then dies with it. Waits for the supervisor only, with a limit.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcflow import signals
from hpcflow.errors import EXIT_FAILED, EXIT_OK, FirstStepFault, JobFault
from hpcflow.job import commands, steps
from hpcflow.job.processes import Children
from hpcflow.job.verdict import Member
from hpcflow.plan.plan import JobStep, Plan, RankPlan
from hpcflow.rpc import addresses
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rundir import RunDir
from hpcflow.slurm.env import granted_gpus
from hpcflow.spec.load import load_resolved
from hpcflow.spec.run import RunSpec

log = logging.getLogger("hpcflow.node_agent")

_TICK_S = 1.0
# Longer than the supervisor lets a released step live.
_LEAVE_S = 12.0


@dataclass(frozen=True)
class Place:
    """Where an agent is: its step, the plan's number of its node, and that node's name."""

    step: JobStep
    node: int
    host: str

    @staticmethod
    def find(plan: Plan, environ: Mapping[str, str]) -> Place:
        """By what the supervisor and Slurm say in the environment."""
        (step,) = (step for step in plan.job_steps if step.name == environ[steps.STEP])
        hosts = environ[steps.STEP_NODES].split(",")
        host = environ["SLURMD_NODENAME"]
        return Place(step, step.nodes[hosts.index(host)], host)

    def gpus(self, plan: Plan, granted: Sequence[str]) -> dict[int, str]:
        """Names of the step's GPUs on this node, by the plan's numbers.

        Raises:
            JobFault: Slurm granted fewer than the plan needs.
        """
        (owner,) = (role for role in map(plan.role, self.step.roles) if role.shares_with is None)
        numbers = sorted(dict(zip(owner.nodes, owner.gpus_by_node, strict=True))[self.node])
        component = plan.components[self.step.component]
        if component.gpus_are_numbered:
            numbers = list(range(component.gpus_per_node))
        if len(granted) < len(numbers):
            raise JobFault(
                f"Slurm granted {len(granted)} GPUs on {self.host} to step {self.step.name} "
                f"({','.join(granted) or 'none'}), which needs {len(numbers)}",
                cause="step_failed",
                role=self.step.roles[0],
                hint="does the job's GPU request reach its steps? see `scontrol show job`",
            )
        return dict(zip(numbers, granted, strict=False))

    def ranks(self, plan: Plan) -> list[tuple[Member, RankPlan]]:
        """The ranks to start here."""
        return [
            (member, rank)
            for member, role, rank in commands.ranks(plan)
            if role.role in self.step.roles and rank.node == self.node
        ]


class NodeAgent:
    """Starts the ranks of one place, and stays until they have ended."""

    def __init__(self, own: ProcessIdentity, control: ControlClient, environ: Mapping[str, str]) -> None:
        run = RunDir(own.run_dir)
        if not run.plan_json.is_file():
            raise FirstStepFault(
                f"node {environ['SLURMD_NODENAME']} does not see the run folder {run.path}",
                cause="spec",
                role=own.role,
                rank=own.rank,
                hint="it must lie on a file system that every node has: choose another, by --run-dir",
            )
        self._own = own
        self._control = control
        self._environ = environ
        self._attempt = run.attempt(own.attempt)
        self._spec: RunSpec = load_resolved(run.spec_json)
        self._plan = Plan.load(run.plan_json)
        self._place = Place.find(self._plan, environ)
        self._children = Children()
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """Until the supervisor says so and all ranks have left; returns the exit code."""
        self._control.start_heartbeat(self._spec.health.heartbeat_s, on_release=self._wake)
        self._start()
        leave_by = float("inf")
        while time.monotonic() < leave_by and (self._children.running or not self._control.released()):
            wakers = () if self._control.released() else (self._wake_read,)
            self._children.wait(_TICK_S, *wakers)
            for child, status in self._children.reap():
                log.info("%s ended: %d", child.member, status)
                self._control.exited(*child.member, status)
            if self._control.released() and leave_by == float("inf"):
                leave_by = time.monotonic() + _LEAVE_S
        self._children.sweep()
        return EXIT_OK

    def _start(self) -> None:
        place, plan, spec = self._place, self._plan, self._spec
        address = self._address()
        gpus = place.gpus(plan, granted_gpus(self._environ))
        identities = commands.identities(plan, replace(self._own, address=address))
        prefix = spec.slurm.container_prefix
        for member, rank in place.ranks(plan):
            environ = commands.environment(member, plan, spec, base=self._environ, gpus=gpus)
            identity = replace(
                identities[member],
                host=place.host,
                # A container's runtime is the parent there; a command's wrapper is in no container.
                parent=None if prefix and not commands.is_command(member) else os.getpid(),
            )
            try:
                self._children.start(
                    member,
                    commands.command_line(member, prefix),
                    environ={**environ, **identity.to_environ()},
                    log=self._attempt.log(member.role, member.rank),
                )
            except OSError as error:
                raise FirstStepFault(
                    f"{member} cannot be started on {place.host}: {error.strerror}: {error.filename}",
                    cause="spec",
                    role=member.role,
                    rank=member.rank,
                    hint="slurm.container_prefix begins with a program that every node has" if prefix else "",
                ) from error
            named = environ["CUDA_VISIBLE_DEVICES"] or "none"
            log.info("started %s on %s with GPUs %s (plan: %s)", member, place.host, named, rank.gpus)

    def _address(self) -> str:
        interface = self._spec.communication.interface
        if interface is not None:
            return addresses.of_interface(interface)
        return addresses.towards_endpoint(self._own.control)

    def _wake(self) -> None:
        os.write(self._wake_write, b"x")


def main() -> int:
    """Run one agent; a fault is told to the supervisor before this returns."""
    environ = dict(os.environ)
    own = ProcessIdentity.from_environ(environ)
    control = ControlClient(own)
    # Slurm signals the steps first; ranks tell of it themselves, but there may be none yet.
    signals.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), control.signalled)
    signals.adopt_orphans()
    try:
        return NodeAgent(own, control, environ).run()
    except Exception as error:
        log.exception("this node's part of the step cannot go on")
        control.report(error)
        return EXIT_FAILED


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    code = main()
    logging.shutdown()
    sys.exit(code)
