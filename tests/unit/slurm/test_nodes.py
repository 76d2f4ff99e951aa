"""Every form of a node list."""

from __future__ import annotations

import pytest

from hpcflow.errors import ClusterError
from hpcflow.slurm.nodes import expand, fold


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("node1", "node1"),
        ("node[001-003,7]", "node001 node002 node003 node7"),
        ("b04-[09-10]", "b04-09 b04-10"),
        ("b04-[9-10]", "b04-9 b04-10"),
        ("gpu[098-101]", "gpu098 gpu099 gpu100 gpu101"),
        ("r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"),
        ("r[2,1]n[02,01]x", "r2n02x r2n01x r1n02x r1n01x"),
        ("a01,a3", "a01 a3"),
        ("a[2-3],b,c[07]", "a2 a3 b c07"),
        ("n10,n[2-3],n1", "n10 n2 n3 n1"),
        ("host-a.site.org,host_b", "host-a.site.org host_b"),
        ("10-0-0-[1-2]", "10-0-0-1 10-0-0-2"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
    ],
)
def test_a_node_list_is_expanded_in_order_with_its_padding(nodelist: str, names: str) -> None:
    assert expand(nodelist) == names.split()


def test_a_list_of_a_thousand_nodes_is_expanded() -> None:
    names = expand("big[1-1024]")
    assert len(names) == 1024
    assert (names[0], names[-1]) == ("big1", "big1024")


@pytest.mark.parametrize(
    "nodelist", ["node[1-", "node[1-2]]", "node[a-b]", "node[3-1]", "a,,b", "node[]", "a b", "@group", "a!b"]
)
def test_what_is_no_node_list_is_refused(nodelist: str) -> None:
    with pytest.raises(ClusterError, match="node list that cannot be read") as caught:
        expand(nodelist)
    assert repr(nodelist) in str(caught.value)


@pytest.mark.parametrize("nodelist", ["node[1-4]", "node[001-003]", "a[09-10],b", "node7"])
def test_folding_undoes_expanding(nodelist: str) -> None:
    assert fold(expand(nodelist)) == nodelist


def test_folding_sorts() -> None:
    assert fold(["n10", "n2", "n9"]) == "n[2,9-10]"
    assert fold([]) == ""
