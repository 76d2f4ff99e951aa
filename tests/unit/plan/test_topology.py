"""Which GPUs of a node a set gets, and what a plan says where that is not near enough."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcflow.plan import topology as choosing
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.plan.topology import Want, arrange, straddles
from hpcflow.spec.topology import Level, NodeTopology, parse, read_topology
from tests.support.specs import tiny_spec
from tests.support.topologies import FOLDER, topology

MACHINES = sorted(path.stem for path in FOLDER.glob("*.txt"))
BRIDGES = "a100-pcie-8-bridges"


def alone(*counts: int) -> tuple[Want, ...]:
    """Sets of ranks with one GPU each."""
    return tuple(Want(count, 1) for count in counts)


def domains(size: int, count: int) -> NodeTopology:
    """A node of `count` NUMA nodes with `size` GPUs each, and no NVLink."""
    numa = [gpu // size for gpu in range(size * count)]
    levels = [
        [
            Level.NVLINK_IN_NUMA if a == b else Level.NUMA if numa[a] == numa[b] else Level.SYSTEM
            for b in every
        ]
        for every in [range(len(numa))]
        for a in every
    ]
    return NodeTopology(tuple(tuple(row) for row in levels), tuple(numa))


@pytest.mark.parametrize(
    ("machine", "wants", "sets"),
    [
        # All alike: as by first fit.
        ("h200-1", alone(1), [(0,)]),
        ("a100-sxm-4", alone(1, 2, 1), [(0,), (1, 2), (3,)]),
        # In one NUMA node too, where the NVLink clique has the choice.
        ("dgx-h100", alone(2, 4, 2), [(0, 1), (4, 5, 6, 7), (2, 3)]),
        ("dgx-a100", alone(1, 2, 2, 1), [(0,), (2, 3), (4, 5), (1,)]),
        # A pair under a bridge, then a NUMA node.
        (BRIDGES, alone(1, 2, 4), [(0,), (2, 3), (4, 5, 6, 7)]),
        (BRIDGES, alone(1, 2, 1), [(0,), (2, 3), (1,)]),
        # The larger one first: else the last has 1 GPU here and 2 there.
        ("l40s-4", alone(1, 1, 2), [(0,), (1,), (2, 3)]),
        # Cliques that are not all of a node, and overlap.
        ("dgx1-v100", alone(1, 4, 3), [(0,), (4, 5, 6, 7), (1, 2, 3)]),
    ],
)
def test_a_set_stays_near_together(
    machine: str, wants: tuple[Want, ...], sets: list[tuple[int, ...]]
) -> None:
    assert list(arrange(topology(machine), wants)) == sets


def test_the_order_of_the_roles_changes_only_to_avoid_a_straddle() -> None:
    node = domains(4, 2)
    assert arrange(node, alone(1, 2, 2, 3)) == ((3,), (4, 5), (6, 7), (0, 1, 2))
    assert arrange(node, alone(2, 3, 3)) == ((0, 1), (4, 5, 6), (2, 3, 7))


def test_the_groups_of_a_set_are_neighbours_in_it() -> None:
    """The numbers of bridged GPUs need not follow each other."""
    rows = (FOLDER / f"{BRIDGES}.txt").read_text()
    shuffled = [0, 2, 1, 3, 4, 6, 5, 7]
    levels = parse(rows).levels
    node = NodeTopology(
        tuple(tuple(levels[one][other] for other in shuffled) for one in shuffled),
        (0, 0, 0, 0, 1, 1, 1, 1),
    )
    (gpus, rest) = arrange(node, (Want(4, 2), Want(4, 4)))
    assert gpus == (0, 2, 1, 3)
    assert rest == (4, 5, 6, 7)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, tuple[Want, ...]]:
    machine = draw(st.sampled_from(MACHINES))
    free = len(topology(machine).numa)
    wants: list[Want] = []
    while free and len(wants) < 5 and (not wants or draw(st.booleans())):
        width = draw(st.sampled_from([width for width in (1, 2, 4) if width <= free]))
        wants.append(Want(width * draw(st.integers(1, free // width)), width))
        free -= wants[-1].size
    return machine, tuple(wants)


@settings(deadline=None, max_examples=150)
@given(requests())
def test_sets_are_disjoint_of_the_right_size_and_always_the_same(
    asked: tuple[str, tuple[Want, ...]],
) -> None:
    machine, wants = asked
    node = topology(machine)
    sets = arrange(node, wants)
    assert [len(gpus) for gpus in sets] == [want.size for want in wants]
    taken = [gpu for gpus in sets for gpu in gpus]
    assert len(taken) == len(set(taken))
    assert set(taken) <= set(range(len(node.numa)))
    assert arrange(node, wants) == sets


@st.composite
def packings(draw: st.DrawFn) -> tuple[int, int, tuple[int, ...]]:
    """Domains of a node, and up to five sets that fit into them, in any order."""
    size, count = draw(st.sampled_from([(2, 2), (2, 4), (3, 2), (4, 2), (4, 4), (8, 2)]))
    counts: list[int] = []
    for _ in range(count):
        free = size
        while free and len(counts) < 5 and draw(st.booleans()):
            counts.append(draw(st.integers(1, free)))
            free -= counts[-1]
    assume(counts)
    return size, count, tuple(draw(st.permutations(counts)))


@settings(deadline=None, max_examples=150)
@given(packings())
def test_no_set_straddles_where_they_can_be_packed(packing: tuple[int, int, tuple[int, ...]]) -> None:
    size, count, counts = packing
    node = domains(size, count)
    assert not any(straddles(node, gpus) for gpus in arrange(node, alone(*counts)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["l40s-4", BRIDGES]))
def test_as_few_sets_straddle_as_in_any_choice(counts: list[int], machine: str) -> None:
    node = topology(machine)
    every = range(len(node.numa))
    assume(sum(counts) <= len(every))

    def fewest(free: frozenset[int], left: Sequence[int]) -> int:
        if not left:
            return 0
        choices = itertools.combinations(sorted(free), left[0])
        return min(straddles(node, gpus) + fewest(free - set(gpus), left[1:]) for gpus in choices)

    assume(len(counts) < 4 or len(every) == 4)
    mine = sum(straddles(node, gpus) for gpus in arrange(node, alone(*counts)))
    assert mine == fewest(frozenset(every), counts)


def a_plan(folder: Path, machine: str, *overrides: str, **gpus: int) -> Plan:
    """Roles on so many GPUs of their own; the node is as large as the machine."""
    known = topology(machine)
    placed = [f"roles.{role}.gpus_per_node={count}" for role, count in gpus.items()]
    ranks = [f"roles.{role}.ranks_per_node={count}" for role, count in gpus.items() if role != "rollout"]
    batches = ["algorithm.prompts_per_step=240", "algorithm.minibatch_samples=240"]
    nccl = ["communication.collectives=nccl"] if {"actor", "critic"} <= gpus.keys() else []
    spec = tiny_spec(
        folder,
        *(*placed, *ranks, *batches, *nccl),
        f"slurm.gpus_per_node={len(known.numa)}",
        f"slurm.topology={FOLDER / machine}.txt",
        *overrides,
    )
    return build(spec, read_topology(spec))


def sets_of(plan: Plan) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {role.role: role.gpus_by_node for role in plan.roles if any(role.gpus_by_node)}


def test_a_plan_of_whole_nodes_uses_the_topology(tmp_path: Path) -> None:
    tp = ["roles.rollout.tensor_parallel=4", "roles.rollout.ranks_per_node=1"]
    plan = a_plan(tmp_path, BRIDGES, *tp, actor=2, critic=2, rollout=4)
    assert sets_of(plan) == {"actor": ((0, 1),), "critic": ((2, 3),), "rollout": ((4, 5, 6, 7),)}
    first_fit_would = a_plan(tmp_path, BRIDGES, *tp, actor=1, critic=3, rollout=4)
    assert sets_of(first_fit_would)["rollout"] == ((4, 5, 6, 7),)
    assert plan.warnings == first_fit_would.warnings == ()


def test_a_straddling_set_is_said_with_its_reason(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "l40s-4", actor=1, critic=3)
    assert plan.warnings == (
        "critic: its GPUs 1,2,3 on node 0 cross NUMA nodes 0 and 1 and are not all joined by NVLink; "
        "no 3 GPUs of such a node are nearer",
    )
    tp = ["roles.rollout.tensor_parallel=2", "roles.rollout.ranks_per_node=1"]
    assert a_plan(tmp_path, "l40s-4", *tp, actor=1, critic=1, rollout=2).warnings == ()


def test_a_set_whose_place_others_hold_is_said_so(tmp_path: Path) -> None:
    tp = ["roles.rollout.tensor_parallel=2", "roles.rollout.ranks_per_node=1"]
    plan = a_plan(tmp_path, BRIDGES, *tp, actor=3, critic=3, rollout=2)
    assert plan.warnings == (
        "critic: its GPUs 3,6,7 on node 0 cross NUMA nodes 0 and 1 and are not all joined by NVLink; "
        "other roles hold the GPUs that would be nearer",
    )


def test_a_straddling_group_is_said_instead_of_its_set(tmp_path: Path) -> None:
    wide = ["roles.rollout.tensor_parallel=6", "roles.rollout.ranks_per_node=1"]
    (told,) = a_plan(tmp_path, BRIDGES, *wide, actor=1, critic=1, rollout=6).warnings
    assert told.startswith("rollout: one rank's GPUs 2,3,4,5,6,7 on node 0 cross NUMA nodes 0 and 1")


def test_the_same_straddle_on_many_nodes_is_one_sentence(tmp_path: Path) -> None:
    nodes = ["roles.actor.nodes=4", "roles.critic.nodes=4"]
    (told,) = a_plan(tmp_path, "l40s-4", *nodes, actor=3, critic=1).warnings
    assert told.startswith("actor: its GPUs 0,1,2 on nodes 0-3 cross")


def test_parts_of_nodes_are_placed_as_if_nothing_were_known_and_the_plan_says_so(tmp_path: Path) -> None:
    gpus = {"actor": 1, "critic": 2}
    plan = a_plan(tmp_path, "l40s-4", **gpus)
    assert sets_of(plan) == {"actor": ((0,),), "critic": ((1, 2),)}
    assert plan.warnings == (
        "actor, critic: it is not known whether GPU sets straddle: the job takes 3 of the 4 GPUs of a node, "
        "so Slurm chooses which (slurm.options.exclusive: true takes whole nodes)",
    )
    whole = a_plan(tmp_path, "l40s-4", "slurm.options={exclusive: true}", **gpus)
    assert sets_of(whole) == {"actor": ((0,),), "critic": ((2, 3),)}
    assert (whole.gpus_per_node, whole.warnings) == (4, ())


def test_nothing_is_known_of_other_kinds_of_nodes(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "l40s-4", "slurm.resources.critic.partition=old", actor=4, critic=4)
    assert plan.warnings[-1] == (
        "critic: it is not known whether GPU sets straddle: slurm.topology is about other nodes (any node) "
        "than theirs (partition old)"
    )


def test_sharers_get_groups_within_the_set_of_the_owner(tmp_path: Path) -> None:
    rollout = [
        "roles.rollout.tensor_parallel=2",
        "roles.rollout.ranks_per_node=2",
        "roles.rollout.share_with=actor",
    ]
    plan = a_plan(tmp_path, BRIDGES, *rollout, actor=5, critic=3, rollout=4)
    pairs = [rank.gpus for rank in plan.role("rollout").ranks]
    assert all(topology(BRIDGES).level(pair) == Level.NVLINK_IN_NUMA for pair in pairs)


def test_a_plan_with_warnings_comes_back_equal_from_its_file(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "l40s-4", actor=1, critic=3)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_equal_nodes_are_arranged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Want, ...]] = []

    def counted(node: NodeTopology, wants: tuple[Want, ...]) -> tuple[tuple[int, ...], ...]:
        asked.append(wants)
        return arrange(node, wants)

    monkeypatch.setattr(choosing, "arrange", counted)
    nodes = ["roles.actor.nodes=8", "roles.critic.nodes=10"]
    plan = a_plan(tmp_path, "l40s-4", *nodes, actor=3, critic=1)
    assert plan.nodes == 10
    assert asked == [alone(3, 1), alone(1)]
