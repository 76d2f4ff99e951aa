"""`srun` lines of a plan's steps, and where each node agent finds itself."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hpcflow.errors import FirstStepFault, JobFault, UserError
from hpcflow.job import steps
from hpcflow.job.node_agent import NodeAgent, Place
from hpcflow.job.verdict import Member
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from tests.support.golden import check_golden
from tests.support.specs import tiny_spec

ON_GPUS = (
    *("roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2", "communication.collectives=nccl"),
    *("roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1"),
    *("roles.reference.gpus_per_node=1", "roles.reference.share_with=actor"),
)
HOSTS = {0: "a-09", 1: "a-10", 2: "b1"}


def plan_of(folder: Path, *overrides: str) -> Plan:
    """Actor and reference on one node of two GPUs, critic and rollout on another."""
    return build(tiny_spec(folder, *ON_GPUS, "slurm.gpus_per_node=2", *overrides))


def lines(plan: Plan) -> str:
    commands = [steps.srun(step, plan, HOSTS, python="/opt/my env/bin/python") for step in plan.job_steps]
    return "".join(f"{shlex.join(command)}\n" for command in commands)


def test_every_step_states_its_nodes_cores_memory_and_gpus(tmp_path: Path) -> None:
    cores = "slurm.resources.actor={cpus_per_rank: 3, memory_gib_per_rank: 2.5}"
    check_golden("srun/steps.txt", lines(plan_of(tmp_path, cores)))


def test_a_step_of_a_heterogeneous_job_names_its_component(tmp_path: Path) -> None:
    check_golden("srun/hetjob.txt", lines(plan_of(tmp_path, "slurm.shape=hetjob", "slurm.gpus_per_node=4")))


def test_steps_see_all_gpus_where_the_plan_numbers_them(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    whole = replace(plan, components=(replace(plan.components[0], gpus_are_numbered=True),))
    actor, *_, reward, _ = (steps.srun(step, whole, HOSTS, python="p") for step in whole.job_steps)
    assert {"--exact", "--overlap", "--gpus-per-node=2"} <= {*actor}
    assert "--gres=none" in reward
    assert "--overlap" not in reward


def test_nodes_of_components_follow_each_other(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "slurm.shape=hetjob")
    found = steps.hosts_of(plan, [["n03"], ["n01"], ["n02"]])
    assert found == {0: "n03", 1: "n01", 2: "n02"}


def test_a_job_that_is_too_small_for_the_plan_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "slurm.shape=hetjob")
    with pytest.raises(
        UserError, match=r"has 2 nodes in 1 component, .* takes 1 \+ 1 \+ 1 nodes in 3 components"
    ):
        steps.hosts_of(plan, [["n1", "n2"]])
    with pytest.raises(UserError, match=r"has 1 \+ 0 \+ 1 nodes"):
        steps.hosts_of(plan, [["n1"], [], ["n2"]])


def test_nodes_that_the_plan_does_not_need_stay_idle(tmp_path: Path) -> None:
    assert steps.hosts_of(plan_of(tmp_path), [["n1", "n2", "n3"]]) == {0: "n1", 1: "n2"}


def place(plan: Plan, step: str, nodes: str, here: str) -> Place:
    environ = {"HPCFLOW_STEP": step, "HPCFLOW_STEP_NODES": nodes, "SLURMD_NODENAME": here}
    return Place.find(plan, environ)


def test_an_agent_starts_the_ranks_of_its_step_on_its_node(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "roles.actor.nodes=2", "algorithm.minibatch_samples=8")
    second = place(plan, "actor+reference", "x1,x2", "x2")
    assert (second.node, second.host) == (1, "x2")
    assert [member for member, _ in second.ranks(plan)] == [Member("actor", 2), Member("actor", 3)]
    first = place(plan, "actor+reference", "x1,x2", "x1")
    assert [member.role for member, _ in first.ranks(plan)] == ["actor", "actor", "reference"]


@pytest.mark.parametrize("granted", [("3", "0"), ("GPU-ab", "MIG-cd")])
def test_ranks_get_their_places_among_the_gpus_that_slurm_granted(
    tmp_path: Path, granted: tuple[str, str]
) -> None:
    plan = plan_of(tmp_path, "slurm.gpus_per_node=4")
    rollout = place(plan, "rollout", "x", "x")
    assert plan.role("rollout").gpus_by_node == ((3,),), "the plan's number is no place in the step's grant"
    assert rollout.gpus(plan, granted[:1]) == {3: granted[0]}
    assert place(plan, "actor+reference", "x", "x").gpus(plan, granted) == dict(enumerate(granted))


def test_a_sharer_may_come_before_the_owner_of_its_gpus(tmp_path: Path) -> None:
    wide = ("roles.rollout.gpus_per_node=2", "roles.rollout.tensor_parallel=2")
    shared = ("roles.actor.ranks_per_node=1", "roles.actor.gpus_per_node=1", "roles.actor.share_with=rollout")
    plan = plan_of(tmp_path, *wide, *shared)
    found = place(plan, "actor+reference+rollout", "x", "x").gpus(plan, ("5", "7"))
    assert {gpu: found[gpu] for gpu in plan.role("rollout").ranks[0].gpus} == {0: "5", 1: "7"}


def test_numbered_gpus_are_taken_by_their_numbers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "slurm.gpus_per_node=4")
    whole = replace(plan, components=(replace(plan.components[0], gpus_are_numbered=True),))
    assert place(whole, "rollout", "x", "x").gpus(whole, ("0", "1", "2", "3"))[3] == "3"


def test_too_few_gpus_are_a_fault_that_names_the_node(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    with pytest.raises(JobFault, match=r"Slurm granted 1 GPUs on x to step actor\+reference \(3\)") as caught:
        place(plan, "actor+reference", "x", "x").gpus(plan, ("3",))
    assert caught.value.cause == "step_failed"


def test_a_step_on_cpus_needs_no_gpus(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert place(plan, "reward", "x", "x").gpus(plan, ()) == {}


def test_a_node_that_does_not_see_the_run_folder_says_so(tmp_path: Path) -> None:
    own = ProcessIdentity(
        run_dir=tmp_path / "not here",
        attempt=1,
        control="tcp://127.0.0.1:1",
        token="secret",
        role="step_actor",
        rank=0,
        local_rank=0,
        world_size=1,
        address="",
        parent=None,
    )
    with pytest.raises(FirstStepFault, match=r"node n7 does not see the run folder .*not here") as caught:
        NodeAgent(own, ControlClient(own), {"SLURMD_NODENAME": "n7"})
    assert caught.value.cause == "spec"
    assert "--run-dir" in caught.value.hint
