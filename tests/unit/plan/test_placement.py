from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.errors import SpecErrors
from hpcflow.plan.placement import check, place
from hpcflow.plan.plan import RolePlan
from hpcflow.plan.shape import islands
from hpcflow.spec.run import RunSpec
from tests.support.specs import tiny_spec


def gpus(roles: Sequence[RolePlan]) -> dict[str, dict[int, tuple[int, ...]]]:
    """GPU sets by role and node."""
    return {role.role: dict(zip(role.nodes, role.gpus_by_node, strict=True)) for role in roles}


def placed(spec: RunSpec) -> tuple[RolePlan, ...]:
    """All roles, in the islands that the spec leads to."""
    return place(spec, islands(spec))


def on_gpus(role: str, ranks: int, *, nodes: int = 1, share: str = "null") -> list[str]:
    """Overrides that put a role on one GPU per rank."""
    return [
        f"roles.{role}.gpus_per_node={ranks}",
        f"roles.{role}.ranks_per_node={ranks}",
        f"roles.{role}.nodes={nodes}",
        f"roles.{role}.share_with={share}",
    ]


def test_roles_on_cpus_share_node_0_and_hold_no_gpus(tmp_path: Path) -> None:
    roles = placed(tiny_spec(tmp_path, "roles.rollout.ranks_per_node=2"))
    assert [role.role for role in roles] == ["actor", "critic", "reference", "reward", "rollout"]
    assert {role.device for role in roles} == {"cpu"}
    assert {role.nodes for role in roles} == {(0,)}
    assert [(rank.rank, rank.local_rank, rank.gpus) for rank in roles[-1].ranks] == [
        (0, 0, ()),
        (1, 1, ()),
    ]


def test_first_fit_in_the_order_of_the_roles(tmp_path: Path) -> None:
    overrides = [*on_gpus("actor", 4, nodes=2), *on_gpus("critic", 3), *on_gpus("reference", 2)]
    rollout = [
        "roles.rollout={max_response_tokens: 8, gpus_per_node: 4, tensor_parallel: 2, ranks_per_node: 2}"
    ]
    nccl = ["communication.collectives=nccl", "slurm.gpus_per_node=8"]
    roles = placed(tiny_spec(tmp_path, *overrides, *rollout, *nccl))
    assert gpus(roles) == {
        "actor": {0: (0, 1, 2, 3), 1: (0, 1, 2, 3)},
        "critic": {0: (4, 5, 6)},
        "reference": {1: (4, 5)},
        "reward": {0: ()},
        "rollout": {2: (0, 1, 2, 3)},
    }
    assert [rank.gpus for rank in roles[-1].ranks] == [(0, 1), (2, 3)]
    assert [(rank.rank, rank.node, rank.local_rank) for rank in roles[0].ranks][3:5] == [
        (3, 0, 3),
        (4, 1, 0),
    ]


def test_a_chain_of_sharing_uses_the_first_gpus_of_its_owner(tmp_path: Path) -> None:
    overrides = [
        *on_gpus("actor", 2, share="rollout"),
        *on_gpus("critic", 1, share="actor"),
        *on_gpus("reference", 1),
        *on_gpus("rollout", 4),
    ]
    nccl = ["communication.collectives=nccl", "slurm.gpus_per_node=8"]
    sets = gpus(placed(tiny_spec(tmp_path, *overrides, *nccl)))
    assert sets["reference"] == {0: (0,)}
    assert sets["rollout"] == {0: (1, 2, 3, 4)}
    assert sets["actor"] == {0: (1, 2)}
    assert sets["critic"] == {0: (1,)}


def test_more_gpus_than_a_node_has_are_refused(tmp_path: Path) -> None:
    spec = tiny_spec(
        tmp_path,
        *on_gpus("actor", 8),
        "communication.collectives=nccl",
        *on_gpus("critic", 1),
        "slurm.gpus_per_node=4",
    )
    with pytest.raises(SpecErrors) as caught:
        placed(spec)
    assert str(caught.value) == (
        "--set roles.actor.gpus_per_node: more than the 4 GPUs of a node (got 8)\n"
        "  use more nodes (roles.actor.nodes), or correct slurm.gpus_per_node"
    )


def test_the_size_of_a_node_must_be_known(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, *on_gpus("rollout", 1))
    with pytest.raises(SpecErrors) as caught:
        placed(spec)
    assert str(caught.value).endswith(
        "ppo.yaml:1 slurm.gpus_per_node: must say how many GPUs a node has, because rollout run on "
        "GPUs (got 0)"
    )


def test_the_checker_sees_overlap_and_strays(tmp_path: Path) -> None:
    roles = placed(
        tiny_spec(tmp_path, *on_gpus("reference", 1), *on_gpus("rollout", 1), "slurm.gpus_per_node=2")
    )
    reference, rollout = roles[2], roles[4]
    check([reference, rollout])
    overlapping = replace(rollout, gpus_by_node=((0,),), ranks=reference.ranks)
    with pytest.raises(AssertionError):
        check([reference, overlapping])
    check([reference, replace(overlapping, shares_with="reference")])
    with pytest.raises(AssertionError):
        check([replace(rollout, ranks=(replace(rollout.ranks[0], gpus=(5,)),))])
    with pytest.raises(AssertionError):
        check([replace(rollout, ranks=rollout.ranks * 2)])


@st.composite
def placements(draw: st.DrawFn) -> tuple[int, list[str]]:
    """Node size and overrides of a spec whose roles run on CPUs, on own GPUs or on shared ones."""
    capacity = draw(st.integers(1, 8))
    overrides = [f"slurm.gpus_per_node={capacity}", "communication.collectives=nccl"]
    shapes: dict[str, tuple[int, int]] = {}
    for role in ("actor", "critic", "reference", "reward", "rollout"):
        trained = role in {"actor", "critic"}
        kinds = ["own", "share"] if shapes else ["own"]
        kind = draw(st.sampled_from(kinds if trained else [*kinds, "cpu"]))
        if kind == "cpu":
            overrides.append(f"roles.{role}.nodes={draw(st.integers(1, 3))}")
            continue
        owner = draw(st.sampled_from(sorted(shapes))) if kind == "share" else "null"
        most_ranks, most_nodes = shapes[owner] if kind == "share" else (capacity, 3)
        taken, nodes = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_nodes))
        shapes[role] = (taken, nodes)
        width = draw(st.sampled_from([n for n in (1, 2, 4) if taken % n == 0])) if role == "rollout" else 1
        overrides += on_gpus(role, taken, nodes=nodes, share=owner)
        overrides.append(f"roles.{role}.ranks_per_node={taken // width}")
        if role == "rollout":
            overrides.append(f"roles.rollout.tensor_parallel={width}")
    return capacity, overrides


@settings(deadline=None, max_examples=60)
@given(placements())
def test_sets_are_disjoint_within_nodes_and_every_rank_is_placed(
    drawn: tuple[int, list[str]],
) -> None:
    capacity, overrides = drawn
    with tempfile.TemporaryDirectory() as folder:
        spec = tiny_spec(Path(folder), *overrides)
    roles = placed(spec)
    check(roles)
    owned: set[tuple[int, int]] = set()
    for plan, asked in zip(roles, spec.roles.present().values(), strict=True):
        assert plan.world_size == asked.nodes * asked.ranks_per_node
        assert [rank.rank for rank in plan.ranks] == list(range(plan.world_size))
        assert len(plan.nodes) == asked.nodes
        mine = {(node, gpu) for node, held in gpus([plan])[plan.role].items() for gpu in held}
        assert len(mine) == asked.nodes * asked.gpus_per_node
        assert all(gpu < capacity for _, gpu in mine)
        ranks_hold = [(rank.node, gpu) for rank in plan.ranks for gpu in rank.gpus]
        assert sorted(ranks_hold) == sorted(mine)
        if asked.share_with is None:
            assert not owned & mine
            owned |= mine
    for plan in roles:
        if plan.shares_with is not None:
            there = gpus(roles)[plan.shares_with]
            assert all(set(held) <= set(there[node]) for node, held in gpus([plan])[plan.role].items())
