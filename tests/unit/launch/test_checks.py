"""What sbatch would take and leave pending for ever, found beforehand with the key to change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcflow.errors import ClusterError
from hpcflow.launch.checks import Checked, check
from hpcflow.plan.build import build
from hpcflow.slurm.partitions import NodeGroup, Partition
from hpcflow.spec.load import load
from tests.support.specs import SPEC, write_spec

SMALL = "slurm:\n  time_minutes: 60\n  gpus_per_node: 8\n"
ON_GPUS = ("roles.rollout.gpus_per_node=2", "roles.rollout.tensor_parallel=2")


def group(*names: str, **more: Any) -> NodeGroup:
    usual = {"state": "idle", "cpus": 16, "threads_per_core": 1, "memory_mib": 64_000, "gpus": {"h200": 4}}
    return NodeGroup(names=names, **{**usual, **more})


def partition(name: str, *groups: NodeGroup, **more: Any) -> Partition:
    usual = {"default": name == "main", "up": True, "max_minutes": 1440, "max_nodes": None}
    return Partition(name=name, groups=groups, **{**usual, **more})


FOUR = group("n1", "n2", "n3", "n4", features=frozenset({"fast"}))
CLUSTER = (partition("main", FOUR), partition("short", group("n1", "n2"), max_minutes=10))


def checked(folder: Path, *overrides: str, on: tuple[Partition, ...] = CLUSTER) -> Checked:
    spec = load(write_spec(folder, SPEC + SMALL), overrides)
    return check(spec, build(spec), {one.name: one for one in on})


def refused(folder: Path, *overrides: str, on: tuple[Partition, ...] = CLUSTER) -> str:
    with pytest.raises(ClusterError) as caught:
        checked(folder, *overrides, on=on)
    assert caught.value.exit_code == 4
    return caught.value.message


def test_what_fits_is_asked_for_as_planned(tmp_path: Path) -> None:
    spec = load(write_spec(tmp_path, SPEC + SMALL), ["slurm.partition=main,short"])
    assert checked(tmp_path, "slurm.partition=main,short") == Checked(build(spec), ())


def test_an_unknown_partition_is_refused_with_those_there_are(tmp_path: Path) -> None:
    message = refused(tmp_path, "slurm.partition=main,lnog")
    assert "slurm.partition: no partition 'lnog'; there are: main, short" in message
    message = refused(tmp_path, "slurm.resources.critic.partition=x")
    assert "slurm.resources.critic.partition: no partition 'x'" in message


def test_without_a_default_a_partition_must_be_named(tmp_path: Path) -> None:
    on = (partition("a", FOUR), partition("b", FOUR))
    assert "slurm.partition: must be set, as there is no default; there are: a, b" in refused(tmp_path, on=on)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (
            ("slurm.time_minutes=1441",),
            "slurm.time_minutes: 1441 minutes are more than a job may take: 1440 in main",
        ),
        (("slurm.partition=short",), "60 minutes are more than a job may take: 10 in short"),
        (
            ("slurm.resources.actor.cpus_per_rank=12",),
            "asks for 17 CPUs of a node; at most 16 are in partition main",
        ),
        (
            ("slurm.resources.actor.memory_gib_per_rank=60",),
            "asks for 81920 MiB of memory of a node; at most 64000 are",
        ),
        (
            ("roles.rollout.gpus_per_node=6", "roles.rollout.tensor_parallel=6"),
            "slurm.gpus_per_node: actor+critic+reference+reward+rollout asks for 6 GPUs of a node; at most 4",
        ),
        (
            (*ON_GPUS, "slurm.gpu_type=a100"),
            "slurm.gpu_type: no node of partition main has GPUs of type a100; there are: h200",
        ),
        (
            ("roles.actor.nodes=5", "algorithm.minibatch_samples=40", "algorithm.prompts_per_step=40"),
            "roles.actor.nodes: actor+critic+reference+reward+rollout takes 5 nodes that fit it, and "
            "partition main has 4",
        ),
        (
            ("slurm.constraint=fast&tall",),
            "slurm.constraint: no node of partition main has fast&tall; there are: fast",
        ),
    ],
)
def test_what_would_wait_for_ever_is_refused_with_its_key(
    tmp_path: Path, overrides: tuple[str, ...], fault: str
) -> None:
    assert fault in refused(tmp_path, *overrides)


def test_the_place_in_the_spec_is_named(tmp_path: Path) -> None:
    on = (partition("main", FOUR, max_minutes=30),)
    assert f"ppo.yaml:{SPEC.count(chr(10)) + 2} slurm.time_minutes: 60 minutes" in refused(tmp_path, on=on)


def test_all_the_time_of_a_partition_may_be_taken(tmp_path: Path) -> None:
    assert checked(tmp_path, "slurm.time_minutes=1440")
    assert checked(tmp_path, "slurm.time_minutes=9999", on=(partition("main", FOUR, max_minutes=None),))


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    many = ("slurm.resources.actor.cpus_per_rank=12", "slurm.resources.actor.memory_gib_per_rank=60")
    message = refused(tmp_path, *many)
    assert "CPUs" in message
    assert "memory" in message


def test_one_of_several_partitions_is_enough(tmp_path: Path) -> None:
    assert checked(tmp_path, "slurm.partition=short,main").warnings == ()
    small = partition("main", FOUR, max_nodes=1)
    two = ("roles.actor.nodes=2", "algorithm.minibatch_samples=8")
    assert "takes 2 nodes, more than a job may have: 1 in main" in refused(tmp_path, *two, on=(small,))
    assert checked(tmp_path, *two, "slurm.partition=main,wide", on=(small, partition("wide", FOUR)))


HETJOB = ("slurm.shape=hetjob",)


def test_components_need_nodes_of_their_own_in_the_union_of_their_partitions(tmp_path: Path) -> None:
    two = (partition("main", group("n1", "n2")), partition("other", group("n1", "n2", "n3")))
    message = refused(tmp_path, *HETJOB, on=two)
    assert (
        "slurm.shape: actor+reference+reward, critic, rollout are components, which never share a node"
        in message
    )
    assert "they take 3 nodes, and only 2 fit" in message
    # The rollout's partition brings a third node; two more that overlap would not.
    assert checked(tmp_path, *HETJOB, "slurm.resources.rollout.partition=other", on=two)
    overlapping = (two[0], partition("other", group("n1", "n2")))
    assert "take 3 nodes, and only 2 fit" in refused(
        tmp_path, *HETJOB, "slurm.resources.rollout.partition=other", on=overlapping
    )


def test_two_components_on_one_node_are_found_beside_a_third_that_has_many(tmp_path: Path) -> None:
    on = (partition("main", *(group(f"n{number}") for number in range(9))), partition("one", group("m1")))
    crowd = ("slurm.resources.critic.partition=one", "slurm.resources.rollout.partition=one")
    message = refused(tmp_path, *HETJOB, *crowd, on=on)
    assert "critic, rollout are components" in message
    assert "they take 2 nodes, and only 1 fit" in message


def test_excluded_nodes_are_not_counted(tmp_path: Path) -> None:
    checked(tmp_path, "slurm.options.exclude=n[1-3]")
    message = refused(tmp_path, "slurm.options.exclude=n[1-4]")
    assert "slurm.options.exclude: " in message
    assert "and 0 that fit it are left in partition main" in message


def test_components_need_nodes_of_their_own_beside_the_excluded_ones(tmp_path: Path) -> None:
    checked(tmp_path, *HETJOB, *ON_GPUS)
    message = refused(tmp_path, *HETJOB, *ON_GPUS, "slurm.options.exclude=n[1-3]")
    assert "slurm.shape" in message


def test_components_cannot_all_have_the_same_node(tmp_path: Path) -> None:
    checked(tmp_path, "slurm.options.nodelist=n1")
    message = refused(tmp_path, *HETJOB, *ON_GPUS, "slurm.options.nodelist=n1")
    assert "slurm.options.nodelist: the job has" in message


@pytest.mark.parametrize("listed", ["n[1-", "/shared/bad-nodes"])
def test_a_list_of_excluded_nodes_that_is_not_understood_is_left_to_slurm(
    tmp_path: Path, listed: str
) -> None:
    checked(tmp_path, f"slurm.options.exclude={json.dumps(listed)}")


def test_a_node_must_have_everything_at_once(tmp_path: Path) -> None:
    for lacks in ({"cpus": 4}, {"memory_mib": 8000}):
        apart = partition("main", group("n1", **lacks), group("n2", gpus={}))
        message = refused(tmp_path, *ON_GPUS, on=(apart,))
        assert "takes 1 nodes that fit it, and partition main has 0" in message


def test_nodes_that_are_down_are_counted_and_told(tmp_path: Path) -> None:
    down = partition("main", group("n1", state="down*"))
    (warning,) = checked(tmp_path, on=(down,)).warnings
    assert "takes 1 nodes: of the 1 in partition main, 0 are up now" in warning
    (warning,) = checked(tmp_path, on=(partition("main", FOUR, up=False),)).warnings
    assert warning == "partition main is not up now: the job waits until it is"


def test_cpus_are_asked_for_by_whole_cores_where_steps_take_them(tmp_path: Path) -> None:
    two_threads = partition("main", replace(FOUR, threads_per_core=2))
    found = checked(tmp_path, on=(two_threads,))
    # Five steps of one CPU take five cores; the plan asks for their CPUs and the driver's.
    assert [component.cpus_per_node for component in found.plan.components] == [10]
    (warning,) = found.warnings
    assert "nodes have 2 threads on a core" in warning
    assert "asks for 10 CPUs of a node, not 6" in warning
    even = [f"slurm.resources.{role}.cpus_per_rank=2" for role in ("actor", "critic", "reference", "reward")]
    found = checked(tmp_path, *even, "slurm.resources.rollout.cpus_per_rank=2", on=(two_threads,))
    assert found.warnings == ()
    assert found.plan.components[0].cpus_per_node == 12


def test_whole_cores_must_fit_into_a_node(tmp_path: Path) -> None:
    tight = partition("main", replace(FOUR, threads_per_core=4, cpus=16))
    assert "asks for 20 CPUs of a node; at most 16" in refused(tmp_path, on=(tight,))


@pytest.mark.parametrize("constraint", ["fast", "fast|tall", "[rack1|rack2]", "fast&[a|b]", "fast*2"])
def test_a_constraint_that_is_met_or_not_understood_is_left_to_slurm(tmp_path: Path, constraint: str) -> None:
    assert checked(tmp_path, f"slurm.constraint={constraint!r}")
