"""The real supervisor over fake programs: `fake_job.py RUN_DIR`, behaviours in RUN_DIR/behaviours.json."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from hpcflow.job.commands import command_line, is_command
from hpcflow.job.launchers import LocalLauncher
from hpcflow.job.supervisor import supervise
from hpcflow.job.verdict import Member
from hpcflow.observe.exit_report import ExitReport, read_exit
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from hpcflow.spec.run import RunSpec

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


@dataclass
class FakeJob:
    """A run folder with a supervisor on it."""

    run: RunDir
    supervisor: subprocess.Popen[bytes]

    def pids(self) -> dict[str, int]:
        """All processes that said who they are, by name."""
        folder = self.run.path / "pids"
        return {path.name: int(path.read_text()) for path in folder.glob("[!.]*")}

    def wait_for(self, *names: str) -> dict[str, int]:
        """Pids of these, once all have said so."""
        until(lambda: set(names) <= set(self.pids()))
        return self.pids()

    def wait_until_driving(self) -> dict[str, int]:
        """Pids, once the driver has seen all ranks ready."""
        return self.wait_for("driving")

    def end(self) -> int:
        """Exit code of the supervisor, once it has left."""
        return self.supervisor.wait(PATIENCE_S)

    def report(self) -> ExitReport:
        """The report of the last attempt."""
        found = read_exit(self.run.attempts()[-1])
        assert found is not None
        return found

    def left(self) -> dict[str, int]:
        """Processes of the run that still live."""
        return {name: pid for name, pid in self.pids().items() if lives(pid)}


@contextmanager
def fake_job(
    folder: Path, spec: RunSpec, behaviours: dict[str, str], *, actors: int = 1
) -> Iterator[FakeJob]:
    """Supervise `actors` actor ranks, one reward rank, a driver (good ones by default) and real commands."""
    run = RunDir(folder)
    folder.mkdir(parents=True)
    run.spec_json.write_text(spec.model_dump_json())
    _plan(spec, actors).save(run.plan_json)
    (folder / "behaviours.json").write_text(json.dumps(behaviours))
    supervisor = subprocess.Popen([sys.executable, __file__, str(folder)], cwd=REPOSITORY)
    job = FakeJob(run, supervisor)
    try:
        yield job
    finally:
        if supervisor.poll() is None:
            supervisor.kill()
            supervisor.wait(10)
        until(lambda: not job.left())


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Wait until it holds; returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s
        time.sleep(0.02)
    return time.monotonic() - started


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _plan(spec: RunSpec, actors: int) -> Plan:
    plan = build(spec)
    actor, reward = plan.role("actor"), plan.role("reward")
    ranks = tuple(replace(actor.ranks[0], rank=n, local_rank=n) for n in range(actors))
    of_commands = [role for role in plan.roles if role.role in spec.commands]
    return replace(plan, roles=(replace(actor, ranks=ranks), reward, *of_commands))


def _command(run: Path) -> Callable[[Member], list[str]]:
    behaviours = json.loads((run / "behaviours.json").read_text())
    usual = {"driver.0": "drives"}
    program = str(Path(__file__).with_name("fake_process.py"))

    def command(member: Member) -> list[str]:
        if is_command(member):
            return command_line(member)
        name = f"{member.role}.{member.rank}"
        return [sys.executable, program, behaviours.get(name, usual.get(name, "serves"))]

    return command


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.exit(supervise(RunDir(folder), lambda plan, spec: LocalLauncher(plan, spec, _command(folder))))
