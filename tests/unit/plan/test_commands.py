"""Commands are placed like roles: GPU sets, ranks, steps, islands and components."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.errors import SpecErrors
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from tests.support.specs import tiny_spec

ON_GPUS = ("roles.actor.gpus_per_node=1", "roles.rollout.gpus_per_node=1", "slurm.gpus_per_node=4")


def a_plan(folder: Path, *overrides: str) -> Plan:
    return build(tiny_spec(folder, *ON_GPUS, *overrides))


def command(**keys: object) -> str:
    """A table, written for `--set`."""
    return f"{{command: [a], {', '.join(f'{key}: {value}' for key, value in keys.items())}}}"


def test_a_command_on_cpus_is_a_step_of_its_own(tmp_path: Path) -> None:
    plan = a_plan(
        tmp_path, f"commands.server={command(ranks_per_node=3, cpus_per_rank=2, memory_gib_per_rank=1.5)}"
    )
    placed = plan.role("server")
    assert plan.roles[-1] == placed
    assert (placed.nodes, placed.world_size, placed.device) == ((0,), 3, "cpu")
    step = plan.job_steps[-1]
    assert (step.name, step.nodes, step.gpus_per_node) == ("server", (0,), 0)
    assert (step.cpus_per_node, step.memory_mib_per_node) == (6, 3 * 1536)
    without = a_plan(tmp_path)
    assert plan.components[0].cpus_per_node == without.components[0].cpus_per_node + 6
    assert plan.batching == without.batching


def test_ranks_of_a_command_get_gpus_of_their_own(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, f"commands.server={command(nodes=2, ranks_per_node=2, gpus_per_rank=2)}")
    server = plan.role("server")
    assert (server.nodes, server.gpus_by_node, server.device) == ((1, 2), ((0, 1, 2, 3),) * 2, "cuda")
    assert [(rank.rank, rank.node, rank.local_rank, rank.gpus) for rank in server.ranks] == [
        (0, 1, 0, (0, 1)),
        (1, 1, 1, (2, 3)),
        (2, 2, 0, (0, 1)),
        (3, 2, 1, (2, 3)),
    ]


def test_a_command_that_shares_is_in_the_step_of_the_owner(tmp_path: Path) -> None:
    plan = a_plan(
        tmp_path,
        f"commands.server={command(share_with='rollout', gpus_per_rank=1)}",
        f"commands.probe={command(share_with='server', gpus_per_rank=1)}",
    )
    assert plan.role("server").gpus_by_node == plan.role("rollout").gpus_by_node
    assert [step.name for step in plan.job_steps if "server" in step.roles] == ["rollout+server+probe"]


def test_another_kind_of_node_makes_a_component(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, f"commands.server={command(nodes=2, partition='big', constraint='ib')}")
    assert plan.shape.kind == "hetjob"
    component = plan.components[1]
    assert (component.roles, component.partition, component.constraint) == (("server",), "big", "ib")
    assert component.nodes == plan.role("server").nodes == (1, 2)
    with pytest.raises(SpecErrors, match="server: partition big, constraint ib"):
        a_plan(tmp_path, f"commands.server={command(partition='big', constraint='ib')}", "slurm.shape=steps")


def test_a_hetjob_gives_a_command_on_gpus_nodes_of_its_own_and_one_on_cpus_none(tmp_path: Path) -> None:
    plan = a_plan(
        tmp_path,
        "slurm.shape=hetjob",
        f"commands.on_gpus={command(gpus_per_rank=1)}",
        f"commands.on_cpus={command()}",
    )
    roles = [component.roles for component in plan.components]
    assert ("on_gpus",) in roles
    assert "on_cpus" in roles[0]


def test_more_gpus_than_a_node_has_are_refused_by_the_key_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(SpecErrors) as caught:
        a_plan(tmp_path, f"commands.server={command(ranks_per_node=2, gpus_per_rank=3)}")
    assert str(caught.value) == (
        "--set commands.server.gpus_per_rank: more than the 4 GPUs of a node (got 6)\n"
        "  use more nodes (commands.server.nodes), or correct slurm.gpus_per_node"
    )


def test_a_plan_with_commands_comes_back_equal_from_its_file(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, f"commands.server={command(nodes=2)}")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
