"""The private cluster itself: what it offers, what it never touches, and that nothing of it stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.slurm_cluster import TOOLS, Cluster, bring_up, private_cluster, take_down

pytestmark = pytest.mark.slurm

NODES = ["node1", "node2", "node3", "node4"]
# What srun would take over from the batch script and mix with its own arguments.
UNSET = (
    "unset SLURM_GPUS_PER_NODE SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE"
    " SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU"
)
SEEN = """bash -c 'echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"'"""
# Has a process that left the session; the other one ignores TERM as well.
WILLING = "setsid sleep 300 & srun --mem=100 bash -c 'sleep 300 & sleep 301'; sleep 302"
STUBBORN = f"trap '' TERM; {WILLING}"


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines())


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TOOLS / name), *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def up_with_ports(root: Path, *choices: str) -> subprocess.CompletedProcess[str]:
    """Start a cluster whose first choices of ports are these Python expressions; the last one stays."""
    code = f"""import sys
import time
from pathlib import Path
import slurm_cluster
from slurm_daemons import StartError
choices = [{", ".join(f"lambda count: {choice}" for choice in choices)}]
try:
    facts = slurm_cluster.up(
        Path(sys.argv[1]), ports=lambda count: (choices.pop(0) if len(choices) > 1 else choices[0])(count)
    )
except StartError as error:
    sys.exit(str(error))
print(facts.controller_port)
"""
    return subprocess.run(
        [sys.executable, "-c", code, str(root)],
        cwd=TOOLS, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def until_the_step_runs(cluster: Cluster) -> list[psutil.Process]:
    """Everything of the cluster, once the job's last process is there."""
    deadline = time.monotonic() + 30
    while not any(task.cmdline() == ["sleep", "301"] for task in cluster.tasks()):
        assert time.monotonic() < deadline, "the step did not start"
        time.sleep(0.05)
    return cluster.processes()


def test_all_nodes_are_idle_and_partitions_limits_and_features_are_there(cluster: Cluster) -> None:
    assert cluster.node_states() == dict.fromkeys(NODES, "idle")
    partitions = cluster.run("sinfo", "--noheader", "--format=%R %l %D").stdout.split("\n")
    assert sorted(filter(None, partitions)) == [
        "high 1-00:00:00 4", "low 1-00:00:00 4", "main 1-00:00:00 4", "short 10:00 2",
    ]  # fmt: skip
    job = cluster.sbatch("--constraint=rack2", "--partition=main", script="true")
    cluster.wait_for_end(job)
    assert cluster.job(job)["NodeList"] in ("node3", "node4")


def test_every_daemon_listens_on_loopback_only(cluster: Cluster) -> None:
    listening = [
        connection.laddr
        for process in cluster.processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert set(cluster.ports) <= {address.port for address in listening}


def test_concurrent_steps_on_two_nodes_see_disjoint_devices(cluster: Cluster, tmp_path: Path) -> None:
    step = "srun --exact --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=200"
    job = cluster.sbatch(
        "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=4", "--mem=1000",
        script=f"{UNSET}\n"
        f"{step} --gpus-per-node=3 {SEEN} > {tmp_path}/actor &\n"
        f"{step} --gpus-per-node=1 {SEEN} > {tmp_path}/critic &\nwait",
    )  # fmt: skip
    cluster.wait_for_end(job)
    actor, critic = lines(tmp_path / "actor"), lines(tmp_path / "critic")
    assert len(actor) == len(critic) == 2
    for of_actor, of_critic in zip(actor, critic, strict=True):
        node, devices = of_actor.split()
        assert of_critic.split()[0] == node
        assert sorted(f"{devices},{of_critic.split()[1]}".split(",")) == ["0", "1", "2", "3"]


def test_a_heterogeneous_job_runs_a_step_in_each_component(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.sbatch(
        "--nodes=1", "--gpus-per-node=2", "--mem=500", ":", "--nodes=2", "--gpus-per-node=4", "--mem=500",
        script=f"srun --het-group=0 --mem=200 {SEEN} > {tmp_path}/0 &\n"
        f"srun --het-group=1 --mem=200 {SEEN} > {tmp_path}/1 &\nwait",
    )  # fmt: skip
    cluster.wait_for_end(job)
    first, second = lines(tmp_path / "0"), lines(tmp_path / "1")
    assert [line.split()[1] for line in first + second] == ["0,1", "0,1,2,3", "0,1,2,3"]
    assert len({line.split()[0] for line in first + second}) == 3


def test_a_job_over_the_limit_of_a_partition_is_taken_but_never_starts(cluster: Cluster) -> None:
    """As on every site that does not set EnforcePartLimits."""
    job = cluster.sbatch("--partition=short", "--time=11", script="true")
    assert cluster.state(job) == "PENDING"
    assert cluster.job(job)["Reason"].startswith("Partition")
    cluster.drain()


def test_drain_cancels_pending_running_and_heterogeneous_jobs(cluster: Cluster) -> None:
    running = cluster.sbatch("--nodes=1", script="sleep 300")
    pair = cluster.sbatch("--nodes=1", "--mem=100", ":", "--nodes=1", "--mem=100", script="sleep 300")
    held = cluster.sbatch("--hold", "--array=0-2", script="sleep 300")
    cluster.wait_for(running, "RUNNING")
    assert {f"{running}", f"{pair}+1", f"{held}_[0-2]"} <= set(cluster.queue())
    cluster.drain()
    assert cluster.queue() == cluster.tasks() == []
    assert cluster.node_states() == dict.fromkeys(NODES, "idle")


def test_two_clusters_neither_see_nor_end_each_other(cluster: Cluster, tmp_path: Path) -> None:
    mine = cluster.sbatch("--nodes=1", script="sleep 300")
    cluster.wait_for(mine, "RUNNING")
    before = {process.pid for process in cluster.processes()}
    with private_cluster(tmp_path / "other") as other:
        assert other.name != cluster.name
        assert set(other.ports).isdisjoint(cluster.ports)
        assert other.queue() == []
        # The caller's environment points at the other cluster, as within one of its jobs.
        theirs = cluster.sbatch("--hold", "--job-name=theirs", script="true")
        jobs = other.run("squeue", "--noheader", "--format=%j", SLURM_CONF=str(cluster.slurm_conf)).stdout
        assert "theirs" in jobs
        other.wait_for_end(other.sbatch(script="true"))
        assert cluster.queue() == [f"{theirs}", f"{mine}"]
        answer = tool("slurm_up", "--root", str(other.root), "--form", "big")
        assert answer.returncode == 2, answer.stderr
        assert bring_up(other.root) == other, "a cluster that is up was started anew"
    assert other.processes() == []
    assert {process.pid for process in cluster.processes()} >= before
    assert cluster.state(mine) == "RUNNING"
    cluster.drain()


@pytest.mark.parametrize(
    ("killed", "script"),
    [((), WILLING), (("slurmctld", "slurmd", "munged"), STUBBORN)],
    ids=["nothing", "all daemons"],
)
def test_down_leaves_nothing_whatever_had_died_before(
    tmp_path: Path, killed: tuple[str, ...], script: str
) -> None:
    cluster = bring_up(tmp_path / "c")
    try:
        job = cluster.sbatch("--nodes=2", "--mem=200", script=script)
        cluster.wait_for(job, "RUNNING")
        processes = until_the_step_runs(cluster)
        for process in processes:
            if process.name() in killed:
                process.send_signal(signal.SIGKILL)
    finally:
        take_down(cluster.root)
    assert [process for process in processes if lives(process)] == []
    assert cluster.processes() == []
    assert tool("slurm_down", "--root", str(cluster.root), "--purge").returncode == 0
    assert not cluster.root.exists()


def test_ports_that_are_taken_meanwhile_are_chosen_anew(cluster: Cluster, tmp_path: Path) -> None:
    taken, *_ = cluster.ports
    try:
        done = up_with_ports(
            tmp_path / "c",
            f"[*slurm_cluster.free_ports(count - 1), {taken}]",
            "slurm_cluster.free_ports(count)",
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) != taken
    finally:
        take_down(tmp_path / "c")
    assert set(cluster.node_states()) == set(NODES)


def test_a_failed_start_shows_the_log_and_leaves_no_process(cluster: Cluster, tmp_path: Path) -> None:
    done = up_with_ports(tmp_path / "c", f"[{cluster.ports[0]}] * count")
    assert done.returncode == 1
    assert "slurmctld ended with code" in done.stderr
    assert "Address already in use" in done.stderr
    assert f"{tmp_path}/c/log/slurmctld.log" in done.stderr
    assert Cluster(tmp_path / "c", form="small", name="", ports=()).processes() == []


def test_up_says_how_to_reach_the_cluster(cluster: Cluster) -> None:
    answer = tool("slurm_up", "--root", str(cluster.root))
    assert answer.stdout == f"export SLURM_CONF={cluster.slurm_conf}\n"
    assert str(cluster.logs) in answer.stderr
    facts = json.loads(tool("slurm_up", "--root", str(cluster.root), "--json").stdout)
    assert facts["slurm_conf"] == str(cluster.slurm_conf)


def test_the_big_form_places_a_job_on_512_nodes(big_cluster: Cluster) -> None:
    job = big_cluster.sbatch("--nodes=512", "--gpus-per-node=8", script="true")
    big_cluster.wait_for(job, "CONFIGURING", "RUNNING")
    assert big_cluster.job(job)["NodeList"] == "big[1-512]"
    big_cluster.drain()
