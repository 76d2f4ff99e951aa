"""From what was asked for to what will run: pure, and the only way to a Plan."""

from __future__ import annotations

from hpcflow.errors import SpecError, SpecErrors, UserError
from hpcflow.plan import shape as shapes
from hpcflow.plan import straddles
from hpcflow.plan.batching import build_batching
from hpcflow.plan.placement import place
from hpcflow.plan.plan import Plan, WeightRoute
from hpcflow.spec.run import RunSpec
from hpcflow.spec.topology import NodeTopology


def build(spec: RunSpec, topology: NodeTopology | None = None) -> Plan:
    """Place all roles and compute all batch sizes; `topology` is what `read_topology(spec)` returned.

    Raises:
        SpecErrors: everything that does not fit or divide.
    """
    assert (topology is None) == (spec.slurm.topology is None), spec.slurm.topology
    faults: list[SpecError] = []
    try:
        batching = build_batching(spec)
    except SpecErrors as error:
        faults += error.faults
    try:
        islands = shapes.islands(spec)
        roles = place(spec, islands, topology)
    except SpecErrors as error:
        faults += error.faults
    if faults:
        raise SpecErrors(faults)
    rollout = spec.roles.rollout
    components = shapes.components(spec, islands, roles)
    engines = rollout.nodes * rollout.ranks_per_node
    return Plan(
        name=spec.name,
        steps=spec.steps,
        nodes=1 + max(node for role in roles for node in role.nodes),
        gpus_per_node=max(component.gpus_per_node for component in components),
        roles=roles,
        shape=shapes.shape(spec, components),
        components=components,
        job_steps=shapes.job_steps(roles, components),
        batching=batching,
        weights=WeightRoute(
            backend=spec.communication.weights,
            sender="actor",
            receiver="rollout",
            group_size=1 + engines * rollout.tensor_parallel,
        ),
        warnings=straddles.warnings(spec, topology, roles, components),
    )


def check_local(plan: Plan, available_gpus: int) -> None:
    """Refuse a plan that this machine alone cannot run.

    Raises:
        UserError: it takes more nodes than one, or more GPUs than there are.
    """
    if plan.nodes > 1:
        hint = "set nodes: 1 for every role"
        raise UserError(f"the run takes {plan.nodes} nodes, and a local run has 1", hint=hint)
    if plan.gpus_per_node > available_gpus:
        problem = f"the run takes {plan.gpus_per_node} GPUs, and this machine has {available_gpus}"
        hint = "let roles share GPUs (share_with), or use fewer ranks"
        raise UserError(problem, hint=hint)
