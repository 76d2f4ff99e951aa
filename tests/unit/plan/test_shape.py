"""From roles to islands of nodes, components and job steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.errors import SpecErrors
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from tests.support.specs import tiny_spec

ON_GPUS = (
    # Divides by up to five nodes of every role.
    *("algorithm.prompts_per_step=240", "algorithm.minibatch_samples=240"),
    *("roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2", "communication.collectives=nccl"),
    *("roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1"),
    *("roles.reference.gpus_per_node=1", "roles.reference.share_with=actor"),
    *("roles.reward.gpus_per_node=1", "roles.reward.share_with=reference"),
)


def a_plan(folder: Path, *overrides: str, gpus: int = 4) -> Plan:
    return build(tiny_spec(folder, *ON_GPUS, f"slurm.gpus_per_node={gpus}", *overrides))


def test_roles_of_one_kind_are_steps_of_one_job(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    assert plan.shape.kind == "steps"
    assert plan.shape.reason == "all roles want the same kind of node"
    (component,) = plan.components
    assert (component.nodes, component.gpus_per_node) == ((0,), 4)


def test_roles_that_share_a_gpu_set_are_one_step(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, gpus=2)
    assert [(step.name, step.nodes, step.gpus_per_node) for step in plan.job_steps] == [
        ("actor+reference+reward", (0,), 2),
        ("critic", (1,), 1),
        ("rollout", (1,), 1),
    ]


def test_a_step_is_asked_for_what_the_ranks_of_its_fullest_node_need(tmp_path: Path) -> None:
    cpus = "slurm.resources.actor={cpus_per_rank: 3, memory_gib_per_rank: 2.5}"
    plan = a_plan(tmp_path, cpus, "roles.actor.nodes=2")
    step = plan.job_steps[0]
    assert (step.cpus_per_node, step.memory_mib_per_node) == (2 * 3 + 1 + 1, (2 * 2.5 + 4 + 4) * 1024)
    component = plan.components[0]
    of_steps = sum(step.cpus_per_node for step in plan.job_steps)
    assert component.cpus_per_node == of_steps + 1, "the driver is on the first node, too"


def test_the_driver_counts_on_the_first_node_of_the_first_component_only(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "slurm.shape=hetjob", "slurm.driver={cpus_per_rank: 7, memory_gib_per_rank: 1}")
    assert [component.cpus_per_node for component in plan.components] == [2 + 1 + 1 + 7, 1, 1]
    assert plan.components[0].memory_mib_per_node == (2 * 4 + 4 + 4 + 1) * 1024


def test_a_heterogeneous_job_gives_each_large_role_nodes_of_its_own(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "slurm.shape=hetjob")
    assert plan.shape.kind == "hetjob"
    assert plan.shape.reason == "asked for by slurm.shape: 3 components, none shares a node"
    assert "backfill" in plan.shape.price
    assert [(component.roles, component.nodes) for component in plan.components] == [
        (("actor", "reference", "reward"), (0,)),
        (("critic",), (1,)),
        (("rollout",), (2,)),
    ]
    assert [step.component for step in plan.job_steps] == [0, 1, 2]


def test_another_kind_of_node_makes_a_component_that_holds_several_roles(tmp_path: Path) -> None:
    kinds = ["slurm.partition=a100", "slurm.resources.rollout.partition=l40s"]
    plan = a_plan(tmp_path, *kinds, "slurm.resources.rollout.gpu_type=l40s")
    assert plan.shape.reason == "roles ask for different kinds of nodes: 2 components, none shares a node"
    first, second = plan.components
    assert (first.roles, first.partition, first.gpu_type) == (
        ("actor", "critic", "reference", "reward"),
        "a100",
        None,
    )
    assert (second.roles, second.partition, second.gpu_type) == (("rollout",), "l40s", "l40s")
    assert (first.nodes, second.nodes) == ((0,), (1,))


def test_one_component_alone_is_a_plain_job(tmp_path: Path) -> None:
    share = [f"roles.{role}.share_with=actor" for role in ("critic", "rollout")]
    plan = a_plan(tmp_path, *share, "slurm.shape=hetjob")
    assert (plan.shape.kind, plan.shape.reason) == ("steps", "one component alone is a plain job")


def test_small_roles_on_cpus_join_the_first_component_of_their_kind(tmp_path: Path) -> None:
    plan = build(tiny_spec(tmp_path, "slurm.shape=hetjob", "slurm.resources.reward.partition=cpus"))
    assert [component.roles for component in plan.components] == [
        ("actor", "reference"),
        ("critic",),
        ("reward",),
        ("rollout",),
    ]


def test_one_job_cannot_have_two_kinds_of_node(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors) as caught:
        a_plan(tmp_path, "slurm.shape=steps", "slurm.resources.critic.constraint=big")
    message = str(caught.value)
    assert "slurm.shape" in message
    assert "critic: constraint big" in message
    assert "slurm.shape: auto or hetjob" in message


def test_roles_that_share_gpus_cannot_ask_for_different_nodes(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors, match=r"reference shares the GPUs of actor, but asks for other nodes"):
        a_plan(tmp_path, "slurm.resources.reference.partition=other")


def test_engines_can_leave_the_gpus_idle_that_they_get(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "device=cpu", "communication.collectives=gloo")
    assert {role.device for role in plan.roles} == {"cpu"}
    assert plan.role("actor").gpus_by_node == ((0, 1),)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(["auto", "steps", "hetjob"]),
    nodes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    capacity=st.integers(2, 8),
    apart=st.booleans(),
)
def test_components_hold_every_node_once_and_every_step_within_one(
    shape: str, nodes: list[int], capacity: int, apart: bool
) -> None:
    counts = [
        f"roles.{role}.nodes={n}" for role, n in zip(("actor", "critic", "rollout"), nodes, strict=True)
    ]
    kind = ["slurm.resources.rollout.constraint=other"] if apart and shape != "steps" else []
    with tempfile.TemporaryDirectory() as folder:
        plan = a_plan(Path(folder), f"slurm.shape={shape}", *counts, *kind, gpus=capacity)
    assert [node for component in plan.components for node in component.nodes] == [*range(plan.nodes)]
    started = [role for step in plan.job_steps for role in step.roles]
    assert sorted(started) == sorted(role.role for role in plan.roles)
    for step in plan.job_steps:
        component = plan.components[step.component]
        assert {*step.nodes} <= {*component.nodes}
        assert {*step.roles} <= {*component.roles}
        assert {node for role in step.roles for node in plan.role(role).nodes} <= {*step.nodes}
    for component in plan.components:
        for node in component.nodes:
            here = [step for step in plan.job_steps if node in step.nodes]
            assert sum(step.gpus_per_node for step in here) <= component.gpus_per_node
            assert sum(step.cpus_per_node for step in here) <= component.cpus_per_node
