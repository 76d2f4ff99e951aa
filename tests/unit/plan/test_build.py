from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.errors import SpecErrors, UserError
from hpcflow.plan.build import build, check_local
from hpcflow.plan.plan import Plan
from hpcflow.spec.load import load
from tests.support.specs import tiny_spec

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SPECS = sorted(path.name for path in CONFIGS.rglob("*.yaml"))


def test_a_plan_comes_back_equal_from_its_file(tmp_path: Path) -> None:
    plan = build(tiny_spec(tmp_path))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_weight_group_holds_the_sender_and_every_engine_worker(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "roles.rollout.ranks_per_node=2", "roles.rollout.tensor_parallel=2")
    route = build(spec).weights
    assert (route.backend, route.sender, route.receiver) == ("gloo", "actor", "rollout")
    assert route.group_size == 5


def test_faults_of_batches_and_of_placement_come_together(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "algorithm.minibatch_samples=3", "roles.rollout.gpus_per_node=1")
    with pytest.raises(SpecErrors) as caught:
        build(spec)
    assert [fault.place.split()[-1] for fault in caught.value.faults][-1] == "slurm.gpus_per_node"
    assert len(caught.value.faults) >= 2


def test_a_plan_asks_for_the_gpus_it_uses_and_no_more(tmp_path: Path) -> None:
    overrides = ["roles.rollout.gpus_per_node=2", "roles.rollout.tensor_parallel=2"]
    plan = build(tiny_spec(tmp_path, *overrides, "slurm.gpus_per_node=8"))
    assert (plan.nodes, plan.gpus_per_node) == (1, 2)


def test_a_local_run_must_fit_this_machine(tmp_path: Path) -> None:
    check_local(build(tiny_spec(tmp_path)), 0)
    on_gpus = ["roles.rollout.gpus_per_node=2", "roles.rollout.tensor_parallel=2"]
    plan = build(tiny_spec(tmp_path, *on_gpus, "slurm.gpus_per_node=2"))
    check_local(plan, 2)
    with pytest.raises(UserError, match="the run takes 2 GPUs, and this machine has 1"):
        check_local(plan, 1)
    wide = build(tiny_spec(tmp_path, "roles.rollout.nodes=2"))
    with pytest.raises(UserError, match="the run takes 2 nodes, and a local run has 1"):
        check_local(wide, 8)


@pytest.mark.parametrize("name", SPECS)
def test_every_shipped_spec_can_be_planned(name: str) -> None:
    plan = build(load(CONFIGS / name))
    assert plan.nodes == 1
    assert plan.weights.group_size == 2


def test_the_shipped_specs_are_found() -> None:
    assert {"ppo.yaml", "ppo-smollm2.yaml", "ppo-reward-model.yaml", "ppo-h200.yaml"} <= {*SPECS}
