"""Slurm's commands behind one class: every call has a time-out and one meaning."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from hpcflow.errors import ClusterError


@dataclass(frozen=True)
class SlurmClient:
    """To be replaced by the full one."""

    timeout_s: float = 20.0

    def node_address(self, node: str) -> str:
        """The address of a node, as the controller knows it."""
        done = subprocess.run(
            ["scontrol", "show", "node", "--oneliner", node],
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
        for word in done.stdout.split():
            if word.startswith("NodeAddr="):
                return word.removeprefix("NodeAddr=")
        raise ClusterError(f"Slurm does not tell the address of node {node}: {done.stderr.strip()}")
