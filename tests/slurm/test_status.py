"""Status and cancel on real daemons; the batch script is a stand-in for the supervisor, and loads no engine.

The cluster is found by what `job.json` says alone: SLURM_CONF is not set here.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hpcflow.cli import status as commands
from hpcflow.launch import runs, slurm_job
from hpcflow.launch.handle import JobHandle
from hpcflow.observe.status import read_status
from hpcflow.slurm.client import SlurmClient
from tests.support import fake_supervisor
from tests.support.plans import a_plan
from tests.support.real_runs import wait_until
from tests.support.run_folder import RunMaker
from tests.support.slurm_cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).resolve().parents[2]
MEMORY = ("--mem=200", "--ntasks=1")


class Job:
    """A run folder with a job that a supervisor of this manner leads, one attempt a start."""

    def __init__(self, cluster: Cluster, folder: Path, manner: str, *arguments: str) -> None:
        self.cluster = cluster
        self.maker = RunMaker(folder)
        folder.mkdir(parents=True)
        program = shlex.join([sys.executable, fake_supervisor.__file__, str(folder)])
        script = (
            f"cd {shlex.quote(str(REPOSITORY))}; export PYTHONPATH=$PWD\n"
            f"exec {program} $((1 + ${{SLURM_RESTART_COUNT:-0}})) {manner}"
        )
        log = f"--output={folder}/batch.log"
        self.id = cluster.sbatch("--open-mode=append", log, *(arguments or MEMORY), script=script)
        self.maker.submitted_to_slurm(job_id=str(self.id), slurm_conf=str(cluster.slurm_conf))
        self.run = self.maker.run

    def state(self) -> str:
        return read_status(self.run).state

    def until(self, state: str) -> None:
        wait_until(lambda: self.state() == state, 30.0)

    def until_begun(self, attempt: int = 1) -> None:
        """Until the supervisor takes requests."""
        wait_until(self.run.attempt(attempt).supervisor_json.exists, 30.0)
        self.until("starting")

    def cancel(self, timeout_s: float = 20.0) -> tuple[str, str]:
        ending = JobHandle(self.run).cancel(timeout_s)
        return ending.how, ending.status.state

    def signals(self) -> list[int]:
        return [int(word) for word in (self.maker.path / "signals.txt").read_text().split()]


@pytest.fixture(autouse=True)
def _without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)


@pytest.fixture
def quiet(cluster: Cluster) -> Iterator[Cluster]:
    """Nothing is left on the cluster, without anybody's help."""
    yield cluster
    left, running = cluster.queue(), cluster.tasks()
    cluster.drain()
    assert (left, running) == ([], [])


def test_a_held_job_says_how_to_release_it_and_stays_cancelled(quiet: Cluster, tmp_path: Path) -> None:
    job = Job(quiet, tmp_path / "held", "obeys", "--hold", *MEMORY)
    status = read_status(job.run)
    assert status.state == "queued"
    assert f"`scontrol release {job.id}`" in status.reason
    assert job.cancel() == ("asked", "stopped")
    for looked in (read_status(job.run), JobHandle(job.run).cancel(1.0).status):
        assert (looked.state, looked.reason) == ("stopped", "cancelled before it started")


def test_a_running_job_stops_at_the_first_request(quiet: Cluster, tmp_path: Path) -> None:
    job = Job(quiet, tmp_path / "a b 'c'", "obeys")
    a_plan().save(job.run.plan_json)
    job.until_begun()
    job.maker.driving()
    status = read_status(job.run)
    assert (status.state, {place.nodes for place in status.places}) == ("running", {"node1"})
    assert job.cancel() == ("asked", "stopped")
    assert job.signals() == [2]
    assert job.cancel() == ("over already", "stopped")


def test_a_job_that_is_slow_to_stop_is_asked_twice(quiet: Cluster, tmp_path: Path) -> None:
    job = Job(quiet, tmp_path / "slow", "slow")
    job.until_begun()
    assert job.cancel(1.0) == ("at once", "stopped")
    assert job.signals() == [2, 2]


def test_a_deaf_job_is_killed_and_is_lost(
    quiet: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_job, "END_AT_ONCE_S", 1.0)
    job = Job(quiet, tmp_path / "deaf", "deaf")
    job.until_begun()
    ending = JobHandle(job.run).cancel(0.5)
    assert ending.how == "killed"
    # The report could still arrive over a shared disk.
    assert ending.status.state in ("ending", "lost")
    assert "CANCELLED" in ending.status.reason


def test_a_heterogeneous_job_is_found_by_its_parts_and_stopped_whole(
    quiet: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCFLOW_RUNS", str(tmp_path))
    job = Job(quiet, tmp_path / "het", "obeys", "--nodes=1", "--mem=200", ":", "--nodes=2", "--mem=200")
    job.until_begun()
    for name in (f"{job.id}+0", f"{job.id}+1", f"{job.id}.batch"):
        assert runs.find(name).path == job.run.path
    look = read_status(job.run).slurm
    assert look is not None
    assert [(part.state, part.node_count) for part in look.components] == [("RUNNING", 1), ("RUNNING", 2)]
    commands.cancel(f"{job.id}+1", 20.0, as_json=False)
    assert "het is stopped; it has no checkpoint" in capsys.readouterr().out
    assert job.signals() == [2]


def test_a_waiting_heterogeneous_job_is_cancelled_whole(quiet: Cluster, tmp_path: Path) -> None:
    parts = ("--hold", "--nodes=1", "--mem=200", ":", "--hold", "--nodes=2", "--mem=200")
    job = Job(quiet, tmp_path / "het", "obeys", *parts)
    assert job.state() == "queued"
    assert job.cancel() == ("asked", "stopped")


def test_a_requeued_job_waits_then_has_a_second_attempt(quiet: Cluster, tmp_path: Path) -> None:
    job = Job(quiet, tmp_path / "again", "obeys")
    job.until_begun()
    quiet.run("scontrol", "requeue", str(job.id))
    job.until("queued")
    status = read_status(job.run)
    # TERM of the requeue is a request to stop.
    assert status.reason.startswith("attempt 1 is stopped; its begin time has not come")
    assert status.slurm is not None
    assert status.slurm.start is not None
    quiet.run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    job.until_begun(2)
    quiet.run("scontrol", "requeuehold", str(job.id))
    job.until("queued")
    assert f"`scontrol release {job.id}`" in read_status(job.run).reason
    assert job.cancel() == ("asked", "stopped")
    assert "cancelled while it waited to start again; attempt 2" in read_status(job.run).reason


def test_a_job_that_no_controller_knows_is_lost_and_none_answers_is_unknown(
    quiet: Cluster, tmp_path: Path
) -> None:
    maker = RunMaker(tmp_path / "gone")
    maker.submitted_to_slurm(job_id="999999", slurm_conf=str(quiet.slurm_conf))
    status = read_status(maker.run)
    assert (status.state, status.slurm and status.slurm.answer) == ("lost", "forgotten")
    maker.submitted_to_slurm(job_id="999999", slurm_conf=str(tmp_path / "no such slurm.conf"))
    impatient = partial(SlurmClient.of_cluster, timeout_s=1.0)
    status = JobHandle(maker.run, connect=impatient).status()
    assert (status.state, status.slurm and status.slurm.answer) == ("unknown", "silent")
