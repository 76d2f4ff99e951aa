"""Node lists in every form that Slurm writes them: expanded in Slurm's order, and folded for people."""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.NodeSet import NodeSet, NodeSetException

from hpcflow.errors import ClusterError


def expand(nodelist: str) -> list[str]:
    """`node[001-003,7],gpu-b` as names, zero padding kept.

    Raises:
        ClusterError: it is no node list.
    """
    names: list[str] = []
    for part in _parts(nodelist):
        try:
            names += [str(name) for name in NodeSet(part, resolver=None)]
        except NodeSetException as error:
            raise ClusterError(
                f"Slurm gave a node list that cannot be read: {nodelist!r} ({error})"
            ) from error
    return names


def fold(names: Iterable[str]) -> str:
    """Short for people: `node[1-4]`."""
    return str(NodeSet.fromlist(list(names)))


def _parts(nodelist: str) -> list[str]:
    """Cut at the commas outside brackets: the order of the parts is Slurm's, and tells who is where."""
    parts, depth = [""], 0
    for letter in nodelist.strip():
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]
