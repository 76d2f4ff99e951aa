"""Runs that several tests look at; each takes a full start, so each is started once, when first asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_runs import REPOSITORY, Site
from tests.support.short_runs import KILLED, SETTINGS, Killed, Resumed, killed_run, resumed_run


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo's model, data and reward model; made where they are missing."""
    folder = REPOSITORY / ".demo"
    script = REPOSITORY / "tools" / "make_tiny_model.py"
    command = [sys.executable, str(script), "--out", str(folder), "--reward-model"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    return folder


@pytest.fixture(scope="session")
def site(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Where the runs of these tests are."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.end()


@pytest.fixture(scope="session")
def straight(site: Site) -> Killed:
    """15 steps without interruption; then its actor is killed."""
    return killed_run(site, "straight", SETTINGS, after=KILLED, role="actor")


@pytest.fixture(scope="session")
def spread(site: Site) -> Killed:
    """Every role on two ranks for three steps; then the second rollout rank is killed."""
    roles = ("actor", "critic", "reference", "reward", "rollout")
    ranks = [f"roles.{role}.ranks_per_node=2" for role in roles]
    stages = ["roles.actor.zero_stage=3", "roles.critic.zero_stage=1"]
    return killed_run(site, "spread", [*SETTINGS, *ranks, *stages], after=3, role="rollout", rank=1)


@pytest.fixture(scope="session")
def resumed(site: Site, straight: Killed) -> Resumed:
    """The killed run, resumed twice."""
    return resumed_run(site, straight.real)
