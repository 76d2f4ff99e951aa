"""Clusters that the tests share: each is brought up once, when first asked for, and taken down at the end.

A test leaves the cluster as it found it: `cluster.drain()` cancels what it submitted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
