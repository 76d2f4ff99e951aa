"""A thousand nodes that are not there: jobs are placed by the real controller, and never run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_runs import CONFIG
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_runs import MEMORY, ROLES, SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]

LARGE = {"actor": 256, "critic": 128, "rollout": 128}
GPUS = 8


@pytest.fixture(scope="module")
def site(big_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, sums: None) -> Iterator[SlurmSite]:
    yield SlurmSite(tmp_path_factory.mktemp("large"), big_cluster)
    big_cluster.drain()


def overrides(nodes: dict[str, int]) -> list[str]:
    """A heterogeneous job of whole nodes."""
    sets = [
        f"roles.{role}.{key}"
        for role, count in nodes.items()
        for key in (f"nodes={count}", f"gpus_per_node={GPUS}", f"ranks_per_node={GPUS}")
    ]
    batch = [
        f"algorithm.{key}={GPUS * max(nodes.values())}" for key in ("prompts_per_step", "minibatch_samples")
    ]
    micro = [f"roles.{role}.microbatch_per_gpu=1" for role in ("actor", "critic")]
    warm = [f"roles.{role}.optimizer.warmup_steps=0" for role in ("actor", "critic")]
    return [*sets, *batch, *micro, *warm, f"slurm.gpus_per_node={GPUS}", "slurm.shape=hetjob"]


def calls_of_a_status(site: SlurmSite, folder: Path, counter: Path) -> int:
    """How often one `hpcflow status` asks the controller."""
    counter.mkdir(exist_ok=True)
    log = counter / "calls"
    log.write_text("")
    for name in ("squeue", "scontrol", "sinfo", "sacct"):
        shim = counter / name
        shim.write_text(f'#!/bin/sh\necho {name} >> "{log}"\nPATH="$REAL_PATH" exec {name} "$@"\n')
        shim.chmod(0o755)
    path = site.environment["PATH"]
    counted = SlurmSite(site.folder, site.cluster)
    counted.environment |= {"REAL_PATH": path, "PATH": f"{counter}{os.pathsep}{path}"}
    done = counted.hpcflow("status", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "queued"
    return len(log.read_text().split())


def test_a_heterogeneous_job_of_512_nodes_is_placed(site: SlurmSite) -> None:
    real = site.submit("large", overrides(LARGE))
    job = site.job_of(real)
    site.cluster.wait_for(job, "CONFIGURING", "RUNNING")
    shown = site.cluster.run("squeue", "--noheader", "--jobs", str(job), "--format=%i %D").stdout
    placed = dict(line.split() for line in shown.splitlines())
    assert placed == {f"{job}+{index}": str(count) for index, count in enumerate(LARGE.values())}


def test_a_plan_that_could_never_start_is_refused(site: SlurmSite) -> None:
    settings = [
        f"--set={override}"
        for override in (*ROLES, *MEMORY, *overrides({"actor": 512, "critic": 256, "rollout": 512}))
    ]
    done = site.hpcflow("submit", str(CONFIG), "--cluster", "slurm", "--run-dir", "too large", *settings)
    assert done.returncode == 4, done.stderr
    assert "1280" in done.stderr
    assert "1024" in done.stderr
    assert not (site.folder / "too large").exists()


def test_a_status_asks_once_however_many_nodes_there_are(site: SlurmSite, tmp_path: Path) -> None:
    site.cluster.drain()
    small = site.submit("of one node", ["slurm.options.hold=true", "slurm.gpus_per_node=8"])
    large = site.submit("of many nodes", [*overrides(LARGE), "slurm.options.hold=true"])
    counts = [calls_of_a_status(site, real.run.path, tmp_path / "shims") for real in (small, large)]
    assert counts == [1, 1]
