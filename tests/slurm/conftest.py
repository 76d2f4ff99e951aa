"""Clusters that the tests share: each is brought up once, when first asked for, and taken down at the end.

A test leaves the cluster as it found it: `cluster.drain()` cancels what it submitted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.real_runs import REPOSITORY
from tests.support.slurm_cluster import Cluster, private_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes with four fake GPUs each."""
    with private_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def big_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller with 1,024 nodes that are not there: jobs are placed, and never run."""
    with private_cluster(tmp_path_factory.mktemp("big"), form="big") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def sums() -> None:
    """The demo's model and data; made where they are missing."""
    script = REPOSITORY / "tools" / "make_tiny_model.py"
    command = [sys.executable, str(script), "--out", str(REPOSITORY / ".demo"), "--reward-model"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
