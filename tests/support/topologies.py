"""Nodes whose topology is known, by the name of the file in tests/fixtures/topology."""

from __future__ import annotations

from pathlib import Path

from hpcflow.spec.topology import NodeTopology, parse

FOLDER = Path(__file__).parents[1] / "fixtures" / "topology"


def topology(machine: str) -> NodeTopology:
    """Of one machine kind."""
    return parse((FOLDER / f"{machine}.txt").read_text())
