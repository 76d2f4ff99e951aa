"""Where the job steps of a run are: the plan's node numbers with the names that Slurm granted.

Names come from the controller's answer, or from the endpoints that ranks published. Never waits, and tells
nothing rather than something that may be of an earlier start. Reads of the plan only what it needs: it may
tell of ten thousands of ranks, and a follower looks often.
"""

from __future__ import annotations

import msgspec

from hpcflow.errors import ClusterError
from hpcflow.observe.slurm_look import SlurmLook, StepPlace
from hpcflow.rundir import AttemptDir, RunDir
from hpcflow.slurm.nodes import expand, fold


class _Nodes(msgspec.Struct):
    """A component of the plan."""

    nodes: tuple[int, ...]


class _Step(msgspec.Struct):
    """A job step of the plan."""

    name: str
    roles: tuple[str, ...]
    nodes: tuple[int, ...]


class _Layout(msgspec.Struct):
    """The part of a plan that is needed here."""

    components: tuple[_Nodes, ...]
    job_steps: tuple[_Step, ...]


def step_places(run: RunDir, attempt: AttemptDir | None, look: SlurmLook | None) -> tuple[StepPlace, ...]:
    """All steps of the plan, in its order; () where there is no plan."""
    try:
        layout = msgspec.json.decode(run.plan_json.read_bytes(), type=_Layout)
        hosts = _granted(layout, look)
        if not hosts and attempt is not None and not (look is not None and look.waits):
            hosts = _published(run, attempt)
    except (OSError, msgspec.MsgspecError):
        return ()
    return tuple(
        StepPlace(step.name, step.roles, len(step.nodes), _names(step.nodes, hosts))
        for step in layout.job_steps
    )


def _names(nodes: tuple[int, ...], hosts: dict[int, str]) -> str:
    return fold(hosts[node] for node in nodes) if all(node in hosts for node in nodes) else ""


def _granted(plan: _Layout, look: SlurmLook | None) -> dict[int, str]:
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


def _published(run: RunDir, attempt: AttemptDir) -> dict[int, str]:
    """By the ranks that are ready, or were."""
    from hpcflow.observe.readiness import read_endpoints  # slow to import, as plans are, and seldom needed
    from hpcflow.plan.plan import Plan

    hosts: dict[int, str] = {}
    endpoints = read_endpoints(attempt)
    for role in Plan.load(run.plan_json).roles if endpoints else ():
        told = {published.rank: published.host for published in endpoints.get(role.role, [])}
        hosts |= {rank.node: told[rank.rank] for rank in role.ranks if rank.rank in told}
    return hosts
