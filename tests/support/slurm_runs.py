"""Runs on a private Slurm cluster: the demo's PPO with every role on a GPU set of its own nodes.

The GPUs of the cluster are not there, so engines compute on the CPUs (`device: cpu`); which GPUs a rank would
use is in its environment. All nodes are this machine: every process of a run can be seen from here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcflow.observe.job import read_job
from hpcflow.rundir import RunDir
from tests.support.real_runs import CONFIG, POLL_S, RealRun, wait_until
from tests.support.slurm_cluster import Cluster

STAND_IN = Path(__file__).with_name("stand_in")
ROLES = (
    *("device=cpu", "roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2"),
    *("roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1"),
    *("roles.reference.gpus_per_node=1", "roles.reference.share_with=actor"),
    *("roles.reward.gpus_per_node=1", "roles.reward.share_with=actor"),
    "roles.actor.microbatch_per_gpu=64",
    *("slurm.time_minutes=10", "slurm.driver.memory_gib_per_rank=1.25"),
)
# Tight: a step without a limit of its own would take what the next one needs.
MEMORY_GIB = {"actor": 1.25, "critic": 1.25, "reference": 1.0, "reward": 0.5, "rollout": 2.5}
MEMORY = tuple(f"slurm.resources.{role}.memory_gib_per_rank={size}" for role, size in MEMORY_GIB.items())
AS_STEPS = ("slurm.shape=steps", "slurm.gpus_per_node=2")
AS_HETJOB = ("slurm.shape=hetjob", "slurm.gpus_per_node=4")


@dataclass(frozen=True)
class Rank:
    """A rank as seen in the table of processes."""

    node: str
    gpus: tuple[str, ...]
    started: float
    process: psutil.Process


class SlurmSite:
    """A folder of runs on one cluster, and the command line in it."""

    def __init__(self, folder: Path, cluster: Cluster, *, stand_ins: bool = False) -> None:
        """With `stand_ins` roles and driver only wait, so that no engine is loaded."""
        path = {"PYTHONPATH": str(STAND_IN)} if stand_ins else {}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HPCFLOW_")}
        own = cluster.environment(OMP_NUM_THREADS="1", **path)
        self.folder = folder
        self.cluster = cluster
        self.environment = {key: value for key, value in own.items() if key in kept or key not in os.environ}

    def hpcflow(self, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command of ours to its end."""
        return self.run(sys.executable, "-m", "hpcflow", *arguments, timeout_s=timeout_s)

    def run(
        self, *command: str, timeout_s: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any command to its end, as a user of the cluster."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, name: str, overrides: Sequence[str], *, config: Path = CONFIG) -> RealRun:
        """Submit and leave."""
        settings = [f"--set={override}" for override in (*ROLES, *MEMORY, *overrides)]
        folder = self.folder / name
        done = self.hpcflow("submit", str(config), "--cluster", "slurm", "--run-dir", str(folder), *settings)
        assert done.returncode == 0, done.stderr
        return RealRun(RunDir(folder))

    def job_of(self, real: RealRun) -> int:
        """The Slurm job of a run."""
        record = read_job(real.run)
        assert record is not None
        return int(record.job_id)


def ranks_of(real: RealRun) -> dict[str, Rank]:
    """Every rank of the run that lives, by `role.rank`."""
    found = {}
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if environ.get("HPCFLOW_RUN_DIR") != str(real.run.path) or not _is_rank(process):
                continue
            gpus = environ["CUDA_VISIBLE_DEVICES"]
            found[f"{environ['HPCFLOW_ROLE']}.{environ['HPCFLOW_RANK']}"] = Rank(
                node=environ["SLURMD_NODENAME"],
                gpus=tuple(gpus.split(",")) if gpus else (),
                started=process.create_time(),
                process=process,
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _is_rank(process: psutil.Process) -> bool:
    # Not what a rank started: that inherits its environment.
    return process.cmdline()[1:3] in (["-m", "hpcflow.roles"], ["-m", "hpcflow.driver"])


def ranks_once(real: RealRun, count: int, timeout_s: float = 60.0) -> dict[str, Rank]:
    """The ranks, as soon as so many are there."""
    ranks: dict[str, Rank] = {}

    def there() -> bool:
        nonlocal ranks
        ranks = ranks_of(real)
        assert real.exit(1) is None, real.exit(1)
        return len(ranks) >= count

    wait_until(there, timeout_s)
    return ranks


def seconds_until(true: Callable[[], bool], timeout_s: float = 60.0) -> float:
    """How long it took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < timeout_s
        time.sleep(POLL_S)
    return time.monotonic() - started
