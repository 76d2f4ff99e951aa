"""The real chain from the command line to the supervisor; only roles and driver are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcflow.errors import ClusterError
from hpcflow.launch.handle import JobHandle
from hpcflow.launch.local_executor import launch
from hpcflow.observe.job import read_job, read_supervisor
from hpcflow.observe.status import read_status
from hpcflow.rundir import RunDir
from tests.support.run_folder import WEIRD_NAME
from tests.support.specs import complete_spec

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Site:
    """A folder with a spec, and the command line in it; every run is ended afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = complete_spec(folder / "spec")
        path = f"{ROOT / 'tests/support/stand_in'}:{ROOT}"
        kept = {key: value for key, value in os.environ.items() if key != "HPCFLOW_RUNS"}
        self.environment = {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def hpcflow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must not leave its pipes to anybody."""
        return subprocess.run(
            [sys.executable, "-m", "hpcflow", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def follow(self, run_dir: Path) -> subprocess.Popen[str]:
        """Submit and follow in a session of its own, as a terminal would; started and waited for."""
        follower = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hpcflow",
                "submit",
                str(self.spec),
                "--run-dir",
                str(run_dir),
                "--follow",
            ],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert follower.stdout is not None
        for line in follower.stdout:
            if line.startswith("waiting for actor.0"):
                break
        return follower

    def runs(self) -> list[RunDir]:
        """Every run that was made here."""
        return [RunDir(job.parent) for job in self.folder.rglob("job.json") if job.is_file()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for run in site.runs():
        JobHandle(run).end_at_once()
        assert left_of(run) == []


def left_of(run: RunDir) -> list[str]:
    """Command lines of processes that belong to a run, by their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HPCFLOW_RUN_DIR") == str(run.path):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def supervisor_of(run: RunDir, number: int = 1) -> psutil.Process:
    """The supervisor, once all its processes are started."""
    wait_until(lambda: run.attempt(number).log("driver", 0).exists())
    mark = read_supervisor(run.attempt(number))
    assert mark is not None
    process = mark.process()
    assert process is not None
    return process


def test_a_run_is_submitted_watched_cancelled_and_resumed(site: Site) -> None:
    run = RunDir(site.folder / WEIRD_NAME)
    done = site.hpcflow("submit", str(site.spec), "--run-dir", WEIRD_NAME, "--json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["run_folder"] == str(run.path)
    assert said["attempt"] == 1
    assert json.loads(run.spec_json.read_text())["steps"] == 10

    supervisor = supervisor_of(run)
    assert os.getsid(supervisor.pid) != os.getsid(0)
    assert supervisor.cmdline()[1:] == ["-m", "hpcflow.job", str(run.path)]
    assert not any(name.startswith("SUBMITIT_") for name in supervisor.environ())
    status = json.loads(site.hpcflow("status", WEIRD_NAME, "--json").stdout)
    assert (status["state"], status["attempt"]) == ("starting", 1)
    assert "actor.0 | stand-in for" in site.hpcflow("logs", str(run.path), "--role", "actor").stdout
    again = site.hpcflow("resume", str(run.path))
    assert (again.returncode, "is starting" in again.stderr) == (2, True)

    cancelled = site.hpcflow("cancel", str(run.path))
    assert cancelled.returncode == 0, cancelled.stderr
    assert cancelled.stdout.splitlines()[-1] == f"{WEIRD_NAME} is stopped; it has no checkpoint"
    assert left_of(run) == []
    repeated = site.hpcflow("cancel", str(run.path))
    assert (repeated.returncode, repeated.stdout) == (0, f"nothing to cancel: {WEIRD_NAME} is stopped\n")

    resumed = site.hpcflow("resume", str(run.path))
    assert resumed.returncode == 0, resumed.stderr
    assert "attempt 2" in resumed.stdout
    assert "from the beginning: no checkpoint" in resumed.stdout
    supervisor_of(run, 2)
    assert run.attempt(1).log("actor", 0).exists()
    assert site.hpcflow("cancel", said["job_id"]).returncode == 2, "a job id is looked up in ./runs only"
    assert site.hpcflow("cancel", str(run.path)).returncode == 0
    job = read_job(run)
    assert job is not None
    assert job.attempt == 2


def test_ctrl_c_of_the_terminal_reaches_the_follower_only(site: Site) -> None:
    run = RunDir(site.folder / "run")
    with site.follow(run.path) as follower:
        supervisor = supervisor_of(run)
        assert os.getsid(supervisor.pid) != os.getsid(follower.pid)
        os.killpg(follower.pid, signal.SIGINT)
        out, _ = follower.communicate(timeout=TIMEOUT_S)
    assert follower.returncode == 130, out
    assert "saving a checkpoint; press again to end at once" in out
    assert "hpcflow resume" in out
    assert read_status(run).state == "stopped"
    assert left_of(run) == []


def test_a_hang_up_leaves_the_run_alone(site: Site) -> None:
    run = RunDir(site.folder / "run")
    with site.follow(run.path) as follower:
        supervisor = supervisor_of(run)
        os.killpg(follower.pid, signal.SIGHUP)
        out, _ = follower.communicate(timeout=TIMEOUT_S)
    assert follower.returncode == 130, out
    assert "the run goes on" in out
    assert supervisor.is_running()
    assert read_status(run).state == "starting"


def test_a_killed_supervisor_is_never_shown_as_running(site: Site) -> None:
    run = RunDir(site.folder / "run")
    assert site.hpcflow("submit", str(site.spec), "--run-dir", str(run.path)).returncode == 0
    supervisor_of(run).kill()
    wait_until(lambda: read_status(run).over)
    assert read_status(run).state in ("lost", "failed")
    wait_until(lambda: left_of(run) == [])
    assert site.hpcflow("cancel", str(run.path)).stdout.startswith("nothing to cancel")


def test_a_job_that_cannot_be_recorded_does_not_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    run = RunDir(site.folder / "run")
    run.job_json.mkdir(parents=True)
    with pytest.raises(ClusterError, match="ended with exit code 1") as caught:
        launch(run, 1)
    assert "IsADirectoryError" in caught.value.hint
    wait_until(lambda: not any(str(run.path) in line for line in command_lines()))


def command_lines() -> list[str]:
    """Of all processes but this one."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()) if process.pid != os.getpid() else "")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
