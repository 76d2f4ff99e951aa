"""Reading `nvidia-smi topo -m`: machines of several kinds, and files that are no such output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcflow.errors import SpecErrors
from hpcflow.spec.topology import Level, NodeTopology, parse, read_topology
from tests.support.specs import tiny_spec
from tests.support.topologies import FOLDER, topology

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t8-15\t1\n"


def read(folder: Path, content: bytes, *overrides: str) -> NodeTopology | None:
    file = folder / "node.txt"
    file.write_bytes(content)
    return read_topology(tiny_spec(folder, f"slurm.topology={file}", *overrides))


def fault(folder: Path, content: bytes, *overrides: str) -> str:
    with pytest.raises(SpecErrors) as caught:
        read(folder, content, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_every_machine_kind_is_read() -> None:
    found = {path.stem: topology(path.stem).numa for path in FOLDER.glob("*.txt")}
    assert found == {
        "a100-pcie-8-bridges": (0, 0, 0, 0, 1, 1, 1, 1),
        "a100-sxm-4": (0, 1, 2, 3),
        "a30-mig-2": (None, None),
        "dgx-a100": (3, 3, 1, 1, 7, 7, 5, 5),
        "dgx-h100": (0, 0, 0, 0, 1, 1, 1, 1),
        "dgx1-v100": (None,) * 8,
        "h200-1": (0,),
        "l40s-4": (0, 0, 1, 1),
    }


@pytest.mark.parametrize(
    ("machine", "gpus", "level"),
    [
        ("dgx-h100", (0, 1, 2, 3), Level.NVLINK_IN_NUMA),
        ("dgx-h100", (0, 4), Level.NVLINK),
        ("dgx-a100", (0, 2), Level.NVLINK),
        ("a100-pcie-8-bridges", (2, 3), Level.NVLINK_IN_NUMA),
        ("a100-pcie-8-bridges", (1, 2), Level.NUMA),
        ("a100-pcie-8-bridges", (3, 4), Level.SYSTEM),
        ("dgx1-v100", (0, 4), Level.NVLINK),
        ("dgx1-v100", (0, 5), Level.SYSTEM),
        ("l40s-4", (0, 1), Level.NUMA),
        ("l40s-4", (1, 2), Level.SYSTEM),
        ("a30-mig-2", (0, 1), Level.SYSTEM),
        ("h200-1", (0,), Level.NVLINK_IN_NUMA),
    ],
)
def test_the_two_farthest_gpus_count(machine: str, gpus: tuple[int, ...], level: Level) -> None:
    assert topology(machine).level(gpus) == level


def test_sockets_are_known_from_lscpu_only() -> None:
    text = (FOLDER / "dgx-a100.txt").read_text().replace("NV12", "SYS")
    level = parse(text).level
    assert (level((0, 1)), level((0, 2)), level((0, 4))) == (Level.NUMA, Level.SOCKET, Level.SYSTEM)
    without = parse(text[: text.index("Socket(s)")])
    assert without.level((0, 2)) == Level.SYSTEM


def test_one_numa_node_counts_where_the_links_say_sys() -> None:
    text = MATRIX.replace("NV4", "SYS")
    assert parse(text).level((0, 1)) == Level.SYSTEM
    assert parse(text.replace("8-15\t1", "8-15\t0")).level((0, 1)) == Level.NUMA


def test_a_list_of_numa_nodes_tells_nothing() -> None:
    assert parse(MATRIX.replace("0-7\t0", "0\t0-1")).numa == (None, 1)


def test_what_windows_and_terminals_add_is_no_fault(tmp_path: Path) -> None:
    dressed = MATRIX.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1", 1).replace("\n", "\r\n")
    assert read(tmp_path, b"\xef\xbb\xbf$ nvidia-smi topo -m\r\n" + dressed.encode()) == parse(MATRIX)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "node.txt:1: not an output of `nvidia-smi topo -m`: no line begins with GPU0"),
        (MATRIX.partition("\n")[2], "node.txt:1: the row of GPU0 comes before the heading GPU0 GPU1 ..."),
        (MATRIX + MATRIX, "node.txt:4: the output of a second node begins here: one node per file"),
        (MATRIX + "GPU1\tNV4\tX\t0\t1\n", "node.txt:4: a second row of GPU1: one node per file"),
        (MATRIX + "GPU2\tNV4\tX\t0\t1\n", "node.txt:4: a row of GPU2, which the heading does not name"),
        (MATRIX[: MATRIX.rindex("GPU1")], "node.txt:1: the heading names GPU1, but there is no row of it"),
        (MATRIX.replace("GPU0\tGPU1", "GPU0\tGPU0"), "node.txt:1: the heading names a device twice"),
        (MATRIX.replace("X \tNV4", "X \tNV2"), "node.txt:2: GPU0 to GPU1 is NV2, but GPU1 to GPU0 is NV4"),
        (MATRIX.replace("NV4", "X"), "node.txt:2: GPU0 to GPU1 is X: X is for a GPU and itself"),
        (
            MATRIX.replace("X \tNV4", "X \tFAST"),
            "node.txt:2: GPU0 to GPU1 is FAST, not NV#, PIX, PXB, PHB, NODE or SYS",
        ),
        (
            MATRIX[: MATRIX.rindex("\t X")],
            "node.txt:3: GPU1 to GPU1 is nothing, not NV#, PIX, PXB, PHB, NODE",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, content: str, problem: str) -> None:
    told = fault(tmp_path, content.encode())
    assert told.startswith(problem)
    assert told.endswith("make the file on such a node:  (nvidia-smi topo -m; lscpu) > FILE")


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    assert fault(tmp_path, b"\n\xff\n").startswith("node.txt:2: byte 0xff is not UTF-8")
    told = fault(tmp_path, b" " * ((1 << 20) + 1))
    assert told.startswith("--set slurm.topology: larger than 1048576 bytes")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in [
        ("none", "there is no such file"),
        ("pipe", "is a folder or a device"),
        (".", "is a"),
    ]:
        with pytest.raises(SpecErrors) as caught:
            read_topology(tiny_spec(tmp_path, f"slurm.topology={tmp_path / name}"))
        assert str(caught.value).startswith(f"--set slurm.topology: {problem}")


def test_the_file_and_the_spec_must_agree_on_the_size_of_a_node(tmp_path: Path) -> None:
    told = fault(tmp_path, MATRIX.encode(), "slurm.gpus_per_node=8")
    assert told.startswith(
        "--set slurm.topology: shows a node of 2 GPUs, but slurm.gpus_per_node is 8 (got node.txt)"
    )
    assert "MIG" in told
    assert read(tmp_path, MATRIX.encode(), "slurm.gpus_per_node=2") == parse(MATRIX)


def test_a_spec_without_the_key_knows_nothing(tmp_path: Path) -> None:
    assert read_topology(tiny_spec(tmp_path)) is None
