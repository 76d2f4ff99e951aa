"""What a cluster offers, by what sinfo wrote."""

from __future__ import annotations

import pytest

from hpcflow.errors import ClusterError
from hpcflow.slurm.partitions import parse_gpus, parse_minutes, parse_partitions

SINFO = """\
main|main*|up|1-00:00:00|1-infinite|idle|16|1|8000|node[1-2]|h200,rack1|gpu:h200:4
main|main*|up|1-00:00:00|1-infinite|mixed|32|2|16000|node3|h200,rack2|gpu:h200:8(S:0-1)
main|main*|up|1-00:00:00|1-infinite|down*|16|1|8000|node4|h200,rack2|gpu:h200:4
short|short|up|10:00|1-2|idle|16|1|8000|node[1-2]|h200,rack1|gpu:h200:4
offline|offline|down|infinite|1-infinite|unknown*|8|1|4000|tux[001-003]|(null)|gpu:a100:2,gpu:mig:4
empty|empty|up|infinite|1-infinite|n/a|0|0|0||(null)|(null)
"""


def test_a_partition_knows_its_nodes_and_limits() -> None:
    found = parse_partitions(SINFO)
    assert list(found) == ["main", "short", "offline", "empty"]
    main = found["main"]
    assert main.nodes == {"node1", "node2", "node3", "node4"}
    assert {name for group in main.groups if group.up for name in group.names} == {"node1", "node2", "node3"}
    assert (main.default, main.up, main.max_minutes, main.max_nodes) == (True, True, 1440, None)
    assert (found["short"].default, found["short"].max_minutes, found["short"].max_nodes) == (False, 10, 2)
    assert (found["offline"].up, found["offline"].max_minutes) == (False, None)
    assert not any(group.up for group in found["offline"].groups)
    assert {name for group in main.groups for name in group.gpus} == {"h200"}
    assert main.features == ("h200", "rack1", "rack2")
    assert {name for group in found["offline"].groups for name in group.gpus} == {"a100", "mig"}


def test_overlapping_partitions_share_nodes() -> None:
    found = parse_partitions(SINFO)
    assert len(found["main"].nodes | found["short"].nodes) == 4


def test_the_least_is_what_every_node_has() -> None:
    least = parse_partitions(SINFO)["main"].least()
    assert least is not None
    assert (least.cpus, least.threads_per_core, least.memory_mib, least.gpus) == (16, 2, 8000, {"h200": 4})
    assert parse_partitions(SINFO)["empty"].least() is None


def test_a_type_that_only_some_nodes_have_is_not_in_the_least() -> None:
    mixed = "p|p|up|infinite|1-infinite|idle|8|1|100|a|(null)|gpu:a:1\n" + (
        "p|p|up|infinite|1-infinite|idle|8|1|100|b|(null)|gpu:b:1\n"
    )
    least = parse_partitions(mixed)["p"].least()
    assert least is not None
    assert least.gpus == {}


@pytest.mark.parametrize(
    ("state", "up"),
    [
        *(("idle", True), ("mixed", True), ("allocated+", True), ("idle~", True), ("mixed-", True)),
        *(("planned", True), ("reserved", True), ("IDLE", True), ("completing", True)),
        *(("idle*", False), ("down", False), ("drained", False), ("draining@", False), ("unknown", False)),
        *(("maint", False), ("inval", False), ("future", False), ("something_new", False)),
    ],
)
def test_a_node_is_up_where_it_can_run_jobs(state: str, up: bool) -> None:
    line = f"p|p|up|infinite|1-infinite|{state}|8|1|100|a|(null)|(null)"
    assert parse_partitions(line)["p"].groups[0].up is up


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("", {}),
        ("gpu:4", {"": 4}),
        ("gpu:h200:4", {"h200": 4}),
        ("gpu:h200:4(S:0-1)", {"h200": 4}),
        ("gpu:h200:4(S:0,2),shard:16", {"h200": 4}),
        ("gpu:a100_3g.20gb:2,gpu:a100:6", {"a100_3g.20gb": 2, "a100": 6}),
        ("gpu:a:1(S:0),gpu:a:1(S:1)", {"a": 2}),
        ("shard:8,nic:2", {}),
        ("craynetwork:4,gpu:v100:1", {"v100": 1}),
    ],
)
def test_gpus_are_counted_by_type(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("infinite", None),
        ("10:00", 10),
        ("0:30", 0),
        ("1:00:00", 60),
        ("1-00:00:00", 1440),
        ("2-01:30:00", 2970),
    ],
)
def test_times_are_whole_minutes(text: str, minutes: int | None) -> None:
    assert parse_minutes(text) == minutes


def test_counts_may_be_at_least_or_in_thousands() -> None:
    line = "p|p|up|infinite|1-1K|idle|16+|1|8000+|a|(null)|(null)"
    partition = parse_partitions(line)["p"]
    assert (partition.groups[0].cpus, partition.groups[0].memory_mib, partition.max_nodes) == (16, 8000, 1024)


@pytest.mark.parametrize(
    "line", ["main|main*|up", "p|p|up|x|1-2|idle|8|1|100|a|(null)|(null)", "PARTITION AVAIL"]
)
def test_a_line_of_another_format_is_refused(line: str) -> None:
    with pytest.raises(ClusterError, match="sinfo wrote a line that cannot be read"):
        parse_partitions(line)


def test_a_title_of_the_cluster_is_skipped() -> None:
    assert list(parse_partitions(f"CLUSTER: one\n{SINFO}")) == ["main", "short", "offline", "empty"]
