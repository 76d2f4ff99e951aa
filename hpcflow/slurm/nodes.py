"""Node lists in every form that Slurm writes them: expanded in Slurm's order, and folded for people.

The order tells who is where (the batch step runs on the first node), so nothing is sorted when expanding.
Never asks the controller, and never a group file of the site: a node list is names, nothing else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from ClusterShell.RangeSet import RangeSet, RangeSetException

from hpcflow.errors import ClusterError
from hpcflow.slurm.commands import WRAPPED

# What Slurm writes where no node is.
_NOTHING = frozenset({"", "(null)", "None", "n/a", "N/A", "None assigned"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_ITEM = re.compile(r"[0-9]+(-[0-9]+)?")


def expand(nodelist: str) -> list[str]:
    """`node[001-003,7],gpu-b` as names, in Slurm's order, zero padding kept as written.

    Raises:
        ClusterError: it is no node list.
    """
    if nodelist.strip() in _NOTHING:
        return []
    names: list[str] = []
    for part in _parts(nodelist.strip()):
        try:
            names += _names(part)
        except (ValueError, RangeSetException) as error:
            problem = f"Slurm gave a node list that cannot be read: {nodelist!r} ({error})"
            raise ClusterError(problem, hint=WRAPPED) from error
    return names


def fold(names: Iterable[str]) -> str:
    """Short for people, sorted: `node[1-4]`."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _parts(nodelist: str) -> Iterator[str]:
    """Cut at the commas outside of brackets."""
    depth, start = 0, 0
    for position, letter in enumerate(nodelist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield nodelist[start:position]
            start = position + 1
    yield nodelist[start:]


def _names(part: str) -> list[str]:
    """All names of one part: every bracket is a dimension, the last one runs fastest."""
    pieces = _BRACKETS.split(part)
    # Every second piece is what stood in brackets.
    choices = [list(_numbers(piece)) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    names = ["".join(chosen) for chosen in itertools.product(*choices)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a node")
    return names


def _numbers(brackets: str) -> Iterator[str]:
    """`09-10,7` as 09, 10, 7: each item has a padding of its own."""
    for item in brackets.split(","):
        if not _ITEM.fullmatch(item):
            raise ValueError(f"{item!r} is no range")
        yield from RangeSet(item).striter()
