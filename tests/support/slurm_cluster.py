"""Private Slurm clusters for tests: real daemons, brought up and taken down by the project's own tools.

A `Cluster` runs Slurm's commands against itself, whatever the caller's environment says. Everything waits
with a limit; a cluster that does not start, or does not end, fails the test.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from slurm_layout import Layout
from slurm_stop import environment as slurm_environment

TOOLS = Path(__file__).resolve().parents[2] / "tools"
# The first start on a machine installs packages.
UP_LIMIT_S = 280.0
DOWN_LIMIT_S = 60.0
COMMAND_LIMIT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up; `form` is `small` (node1 .. node4, 4 GPUs each) or `big` (big1 .. big1024)."""

    root: Path
    form: str
    name: str
    ports: tuple[int, ...]

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF names."""
        return Layout(self.root).conf

    @property
    def logs(self) -> Path:
        """The daemons' logs."""
        return Layout(self.root).logs

    def environment(self, **more: str) -> dict[str, str]:
        """The caller's environment with this cluster's SLURM_CONF for its own Slurm settings, and `more`."""
        return {**slurm_environment(Layout(self.root)), **more}

    def run(
        self,
        *command: str,
        check: bool = True,
        cwd: Path | None = None,
        stdin: str = "",
        timeout_s: float = COMMAND_LIMIT_S,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command against this cluster, in its folder of logs; `check` fails with what it wrote."""
        done = subprocess.run(
            command,
            env=self.environment(**variables),
            cwd=cwd or self.logs,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check:
            assert done.returncode == 0, (
                f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def sbatch(self, *arguments: str, script: str = "") -> int:
        """Submit `script` (bash, without its first line) or a file named in `arguments`; returns the id."""
        text = f"#!/bin/bash\n{script}\n" if script else ""
        # --parsable answers ID, or ID;CLUSTER.
        answer = self.run("sbatch", "--parsable", *arguments, stdin=text).stdout
        return int(answer.strip().partition(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """What `scontrol show job` says of a job (of the leader, for a heterogeneous one)."""
        first = self.run("scontrol", "--oneliner", "show", "job", str(job)).stdout.splitlines()[0]
        return dict(re.findall(r"(?:^|\s)([\w/:]+)=(\S*)", first))

    def state(self, job: int) -> str:
        """The state of a job, as RUNNING."""
        return self.job(job)["JobState"]

    def wait_for(self, job: int, *states: str, timeout_s: float = COMMAND_LIMIT_S) -> str:
        """Until the job is in one of these states, which is returned; fails when it ends in another one."""
        seen = ""

        def reached() -> bool:
            nonlocal seen
            seen = self.state(job)
            assert seen in states or seen not in ENDED, f"job {job} is {seen}, not {states}: {self.job(job)}"
            return seen in states

        _wait_until(reached, timeout_s, lambda: f"job {job} is {seen}, not {states}: {self.job(job)}")
        return seen

    def wait_for_end(self, job: int, *, state: str = "COMPLETED", timeout_s: float = COMMAND_LIMIT_S) -> None:
        """Until the job has ended in this state."""
        self.wait_for(job, state, timeout_s=timeout_s)

    def queue(self) -> list[str]:
        """Ids of the jobs that have not ended, as squeue writes them: 7, 7+1, 7_0."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def node_states(self) -> dict[str, str]:
        """The state of every node, as idle, mixed, drained."""
        rows = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T").stdout
        return {node: state for node, state in map(str.split, rows.splitlines())}

    def drain(self, *, timeout_s: float = COMMAND_LIMIT_S) -> None:
        """Cancel all jobs and wait until they are gone, and (small form) until every node is idle."""

        def quiet() -> bool:
            if jobs := self.queue():
                leaders = sorted({re.split(r"[+_]", job)[0] for job in jobs})
                self.run("scancel", "--quiet", *leaders, check=False)
                return False
            return self.form == "big" or set(self.node_states().values()) == {"idle"}

        _wait_until(quiet, timeout_s, lambda: f"jobs {self.queue()}, nodes {self.node_states()}")

    @contextmanager
    def without_daemon(self, node: str) -> Iterator[None]:
        """The node's slurmd is killed, which the controller does not know yet; it runs again afterwards."""
        wanted = ["-N", node]
        (daemon,) = (
            process
            for process in self.processes()
            if Path(process.cmdline()[0]).name == "slurmd" and process.cmdline()[-2:] == wanted
        )
        command = [word for word in daemon.cmdline() if word != "-D"]  # as a daemon, the second time
        daemon.kill()
        daemon.wait(10)
        try:
            yield
        finally:
            self.run(*command)
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            _wait_until(
                lambda: self.node_states()[node] == "idle", COMMAND_LIMIT_S, lambda: str(self.node_states())
            )

    @contextmanager
    def hung_controller(self) -> Iterator[None]:
        """The controller is stopped: it takes connections, and answers nothing until it goes on."""
        (daemon,) = (one for one in self.processes() if Path(one.cmdline()[0]).name == "slurmctld")
        daemon.suspend()
        try:
            yield
        finally:
            daemon.resume()

    def processes(self) -> list[psutil.Process]:
        """This cluster's daemons, and what their steps started."""
        daemons = [process for process in psutil.process_iter() if _names(process, self.root)]
        return [*daemons, *self.tasks()]

    def tasks(self) -> list[psutil.Process]:
        """Processes that run in a job of this cluster: they were given its configuration and a job's id."""
        return [process for process in psutil.process_iter() if _is_task(process, str(self.slurm_conf))]


ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
)


@contextmanager
def private_cluster(root: Path, *, form: str = "small") -> Iterator[Cluster]:
    """A cluster below `root` for as long as the block lasts; its logs stay."""
    try:
        yield bring_up(root, form=form)
    finally:
        take_down(root)


def bring_up(root: Path, *, form: str = "small") -> Cluster:
    """Bring a cluster up by tools/slurm_up."""
    answer = _tool("slurm_up", "--root", str(root), "--form", form, "--json", limit_s=UP_LIMIT_S)
    facts = json.loads(answer.stdout)
    ports = (facts["controller_port"], *facts["node_ports"])
    return Cluster(Path(facts["root"]), form=facts["form"], name=facts["name"], ports=ports)


def take_down(root: Path) -> None:
    """Take a cluster down by tools/slurm_down, whatever of it is up."""
    _tool("slurm_down", "--root", str(root), limit_s=DOWN_LIMIT_S)


def _tool(name: str, *arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(TOOLS / name), *arguments], capture_output=True, text=True, timeout=limit_s, check=False
    )
    assert done.returncode == 0, f"tools/{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done


def _names(process: psutil.Process, root: Path) -> bool:
    try:
        return f"{root}/" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_task(process: psutil.Process, slurm_conf: str) -> bool:
    try:
        variables = process.environ()
    except psutil.Error:
        return False
    return variables.get("SLURM_CONF") == slurm_conf and "SLURM_JOB_ID" in variables


def _wait_until(condition: Callable[[], bool], limit_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"after {limit_s:.0f} s: {what()}"
        time.sleep(POLL_S)
