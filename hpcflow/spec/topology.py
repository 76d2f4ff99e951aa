"""How near the GPUs of a node are to each other, read from what `nvidia-smi topo -m` printed there.

GPUs are numbered as in that output, and a run that takes whole nodes gets them in that order. The output does
not tell sockets: they are known where the same file also holds what `lscpu` printed. Never runs a command.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.spec.run import RunSpec

KEY = "slurm.topology"
MAX_BYTES = 1 << 20
HINT = "make the file on such a node:  (nvidia-smi topo -m; lscpu) > FILE"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")
_NVLINK = re.compile(r"NV[1-9]\d*")
_WITHIN_NUMA = frozenset({"PIX", "PXB", "PHB", "NODE"})
# Columns behind those of the devices; drivers of old have fewer.
_AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NUMA = "NUMA Affinity"
_SOCKETS = re.compile(r"^\s*Socket\(s\):\s*([1-9]\d*)\s*$", re.MULTILINE)
_NUMA_NODES = re.compile(r"^\s*NUMA node\(s\):\s*([1-9]\d*)\s*$", re.MULTILINE)


class Level(IntEnum):
    """How far two GPUs are apart; of several GPUs, the two farthest count."""

    NVLINK_IN_NUMA = 0
    NVLINK = 1
    NUMA = 2
    SOCKET = 3
    SYSTEM = 4


@dataclass(frozen=True)
class NodeTopology:
    """Levels of every two GPUs of a node, and the NUMA node of each GPU where it is known."""

    levels: tuple[tuple[Level, ...], ...]
    numa: tuple[int | None, ...]

    def level(self, gpus: Sequence[int]) -> Level:
        """Of the two of `gpus` that are farthest apart; the nearest where there are not two."""
        pairs = itertools.combinations(gpus, 2)
        return max((self.levels[one][other] for one, other in pairs), default=Level.NVLINK_IN_NUMA)


@dataclass(frozen=True)
class _Heading:
    """The columns of the matrix: `devices`, then `affinities`."""

    line: int
    devices: tuple[str, ...]
    affinities: tuple[str, ...]

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.devices if _GPU.fullmatch(name)]


@dataclass(frozen=True)
class _Row:
    line: int
    links: tuple[str, ...]
    numa: int | None


class _MalformedError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def read_topology(spec: RunSpec) -> NodeTopology | None:
    """The topology of the nodes that the `slurm` table asks for; None where the spec names no file.

    Raises:
        SpecErrors: the file cannot be read, is not such an output, or shows another number of GPUs.
    """
    name = spec.slurm.topology
    if name is None:
        return None
    text = _text(spec, Path(name))
    try:
        topology = parse(text)
    except _MalformedError as error:
        raise SpecErrors([SpecError(f"{name}:{error.line}", str(error), hint=HINT)]) from None
    shown, stated = len(topology.numa), spec.slurm.gpus_per_node
    if stated not in (0, shown):
        problem = f"shows a node of {shown} GPU{'s' * (shown > 1)}, but slurm.gpus_per_node is {stated}"
        hint = "correct one of them; parts of a GPU (MIG) have no topology: leave slurm.topology out"
        raise SpecErrors([SpecError(spec.place(KEY), problem, value=name, hint=hint)])
    return topology


def _text(spec: RunSpec, path: Path) -> str:
    def fault(problem: str, place: str = "") -> SpecErrors:
        where = place or spec.place(KEY)
        return SpecErrors([SpecError(where, problem, value="" if place else str(path), hint=HINT)])

    try:
        if not path.is_file():
            raise fault("is a folder or a device, not a file" if path.exists() else "there is no such file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise fault(f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise fault(f"larger than {MAX_BYTES} bytes: not an output of nvidia-smi")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise fault(f"byte 0x{content[error.start]:02x} is not UTF-8", f"{path}:{line}") from None


def parse(text: str) -> NodeTopology:
    """Levels from the text of an output; raises a fault with its line where it is not one."""
    heading, rows = _matrix(text)
    _check(heading, rows)
    found = [rows[name] for name in heading.gpus]
    sockets = _sockets(text, [row.numa for row in found])
    size = range(len(found))
    levels = [[_level(found, sockets, one, other) for other in size] for one in size]
    return NodeTopology(tuple(tuple(row) for row in levels), tuple(row.numa for row in found))


def _matrix(text: str) -> tuple[_Heading, dict[str, _Row]]:
    heading: _Heading | None = None
    rows: dict[str, _Row] = {}
    for line, words in _lines_of_gpus(text):
        if len(words) == 1 or not _LINK.fullmatch(words[1]):
            if heading is not None:
                raise _MalformedError(line, "the output of a second node begins here: one node per file")
            heading = _heading(line, words)
        elif heading is None:
            raise _MalformedError(line, f"the row of {words[0]} comes before the heading GPU0 GPU1 ...")
        elif words[0] in rows:
            raise _MalformedError(line, f"a second row of {words[0]}: one node per file")
        else:
            rows[words[0]] = _row(line, words, heading)
    if heading is None:
        raise _MalformedError(1, "not an output of `nvidia-smi topo -m`: no line begins with GPU0")
    return heading, rows


def _lines_of_gpus(text: str) -> Iterator[tuple[int, list[str]]]:
    """Heading and rows; what belongs to network devices, legends and `lscpu` is left out."""
    for line, written in enumerate(text.split("\n"), start=1):
        words = _ANSI.sub("", written).split()
        if words and _GPU.fullmatch(words[0]):
            yield line, words


def _heading(line: int, words: Sequence[str]) -> _Heading:
    devices = tuple(itertools.takewhile(lambda word: word not in {"CPU", "NUMA", "GPU"}, words))
    behind = " ".join(words[len(devices) :])
    if len(set(devices)) < len(devices):
        raise _MalformedError(line, "the heading names a device twice")
    return _Heading(line, devices, tuple(name for name in _AFFINITIES if name in behind))


def _row(line: int, words: Sequence[str], heading: _Heading) -> _Row:
    """One GPU's links to all GPUs."""
    count = len(heading.devices)
    cells, behind = words[1 : 1 + count], words[1 + count :]
    by_device = dict(zip(heading.devices, cells, strict=False))
    links = []
    for name in heading.gpus:
        link = by_device.get(name, "nothing")
        if not _LINK.fullmatch(link):
            expected = "NV#, PIX, PXB, PHB, NODE or SYS"
            raise _MalformedError(line, f"{words[0]} to {name} is {link}, not {expected}")
        links.append(link)
    numa = None
    # An affinity may be left blank: then nobody can tell which column the others stand in.
    if _NUMA in heading.affinities and len(behind) == len(heading.affinities):
        written = behind[heading.affinities.index(_NUMA)]
        numa = int(written) if written.isdecimal() else None
    return _Row(line, tuple(links), numa)


def _check(heading: _Heading, rows: dict[str, _Row]) -> None:
    """Every GPU has its row, and two GPUs say the same of each other."""
    for name in heading.gpus:
        if name not in rows:
            raise _MalformedError(heading.line, f"the heading names {name}, but there is no row of it")
    for name, row in rows.items():
        if name not in heading.gpus:
            raise _MalformedError(row.line, f"a row of {name}, which the heading does not name")
        for other, link in zip(heading.gpus, row.links, strict=True):
            back = rows[other].links[heading.gpus.index(name)]
            if link != back:
                raise _MalformedError(
                    row.line, f"{name} to {other} is {link}, but {other} to {name} is {back}"
                )
            if (link == "X") != (name == other):
                raise _MalformedError(row.line, f"{name} to {other} is {link}: X is for a GPU and itself")


def _sockets(text: str, numa: Sequence[int | None]) -> list[int | None]:
    """The socket of each GPU, where the file tells how many there are: Linux numbers NUMA nodes by socket."""
    sockets, nodes = _SOCKETS.search(text), _NUMA_NODES.search(text)
    if sockets is None or nodes is None or int(nodes[1]) % int(sockets[1]):
        return [None for _ in numa]
    each = int(nodes[1]) // int(sockets[1])
    return [None if node is None else node // each for node in numa]


def _level(rows: Sequence[_Row], sockets: Sequence[int | None], one: int, other: int) -> Level:
    link = rows[one].links[other]
    if one == other:
        return Level.NVLINK_IN_NUMA
    within = link in _WITHIN_NUMA or _same(rows[one].numa, rows[other].numa)
    if _NVLINK.fullmatch(link):
        return Level.NVLINK_IN_NUMA if within else Level.NVLINK
    if within:
        return Level.NUMA
    return Level.SOCKET if _same(sockets[one], sockets[other]) else Level.SYSTEM


def _same(one: int | None, other: int | None) -> bool:
    return one is not None and one == other
