"""Where the job steps of a run are: the plan's node numbers with the names that Slurm granted.

Names come from the controller's answer, or from the endpoints that ranks published. Never waits, and tells
nothing rather than something that may be of an earlier start.
"""

from __future__ import annotations

import msgspec

from hpcflow.errors import ClusterError
from hpcflow.observe.readiness import read_endpoints
from hpcflow.observe.slurm_look import SlurmLook, StepPlace
from hpcflow.plan.plan import Plan
from hpcflow.rundir import AttemptDir, RunDir
from hpcflow.slurm.nodes import expand, fold


def step_places(run: RunDir, attempt: AttemptDir | None, look: SlurmLook | None) -> tuple[StepPlace, ...]:
    """All steps of the plan, in its order; () where there is no plan."""
    try:
        plan = Plan.load(run.plan_json)
    except (OSError, msgspec.MsgspecError):
        return ()
    hosts = _granted(plan, look)
    if not hosts and attempt is not None and not (look is not None and look.waits):
        hosts = _published(plan, attempt)
    return tuple(
        StepPlace(step.name, step.roles, len(step.nodes), _names(step.nodes, hosts))
        for step in plan.job_steps
    )


def _names(nodes: tuple[int, ...], hosts: dict[int, str]) -> str:
    return fold(hosts[node] for node in nodes) if all(node in hosts for node in nodes) else ""


def _granted(plan: Plan, look: SlurmLook | None) -> dict[int, str]:
    """By the node lists of the job's components, whose order is the plan's."""
    if look is None or len(look.components) != len(plan.components):
        return {}
    hosts: dict[int, str] = {}
    for component, told in zip(plan.components, look.components, strict=True):
        try:
            names = expand(told.nodes)
        except ClusterError:
            return {}
        if len(names) != len(component.nodes):
            return {}
        hosts |= dict(zip(component.nodes, names, strict=True))
    return hosts


def _published(plan: Plan, attempt: AttemptDir) -> dict[int, str]:
    """By the ranks that are ready, or were."""
    hosts: dict[int, str] = {}
    endpoints = read_endpoints(attempt)
    for role in plan.roles:
        told = {published.rank: published.host for published in endpoints.get(role.role, [])}
        hosts |= {rank.node: told[rank.rank] for rank in role.ranks if rank.rank in told}
    return hosts
