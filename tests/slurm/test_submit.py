"""`hpcflow submit` on real daemons, up to what the batch script becomes; no engine is started."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from hpcflow.cli import app
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.rundir import RunDir
from tests.support.slurm_cluster import Cluster
from tests.support.specs import complete_spec

pytestmark = pytest.mark.slurm

SEEN_BY_JOB = Path(__file__).parents[1] / "support" / "seen_by_job"
WEIRD = "a b, 'c' \"d\" $HOME;#(e) %x 100% back\\slash \u00fcn\u00ef \u4e2d"
VALUE = "a,b 'c' \"d\"\n$HOME `id` \\ %x=1 \u00fc\u4e2d\t."
SMALL = """
slurm:
  time_minutes: 5
  resources:
    actor: {memory_gib_per_rank: 0.1}
    critic: {memory_gib_per_rank: 0.1}
    reference: {memory_gib_per_rank: 0.1}
    reward: {memory_gib_per_rank: 0.1}
    rollout: {memory_gib_per_rank: 0.1}
  driver: {memory_gib_per_rank: 0.1}
"""


class Answer(NamedTuple):
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


class Site:
    """The command line in this process, against a cluster; jobs write what they were given, and end."""

    def __init__(self, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self.folder = folder
        self._capsys = capsys
        self.spec = complete_spec(folder)
        self.spec.write_text(self.spec.read_text() + SMALL)
        self.seen = folder / "seen.json"

    def hpcflow(self, *arguments: str, **variables: str) -> Answer:
        """Run `hpcflow` with these variables."""
        more = {"PYTHONPATH": str(SEEN_BY_JOB), "SEEN_BY_JOB": str(self.seen), **variables}
        environ = self.cluster.environment(**more)
        with (
            mock.patch.dict(os.environ, environ, clear=True),
            mock.patch.object(sys, "argv", ["hpcflow", *arguments]),
            pytest.raises(SystemExit) as caught,
        ):
            app.main()
        return Answer(int(caught.value.code or 0), *self._capsys.readouterr())

    def submitted(self, *arguments: str, **variables: str) -> JobRecord:
        """Submit the spec into the folder `run`, or the one that is named; what job.json says."""
        folder = arguments[-1] if "--run-dir" in arguments else "run"
        where = () if "--run-dir" in arguments else ("--run-dir", folder)
        done = self.hpcflow("submit", str(self.spec), "--cluster", "slurm", *where, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        record = read_job(RunDir(self.folder / folder))
        assert record is not None
        return record

    def refused(self, *overrides: str, **variables: str) -> str:
        """The refusal of a submission that leaves neither folder nor job."""
        sets = [word for override in overrides for word in ("--set", override)]
        arguments = ["submit", str(self.spec), "--cluster", "slurm", "--run-dir", "run", *sets]
        done = self.hpcflow(*arguments, **variables)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert not (self.folder / "run").exists()
        return done.stderr

    def told(self) -> dict[str, Any]:
        """What the job was given, once it has said so."""
        deadline = time.monotonic() + 20
        while not self.seen.exists():
            assert time.monotonic() < deadline, self.cluster.run("squeue").stdout
            time.sleep(0.05)
        told: dict[str, Any] = json.loads(self.seen.read_text())
        return told


@pytest.fixture
def site(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    yield Site(cluster, tmp_path, capsys)
    cluster.drain()


def ended(site: Site, record: JobRecord) -> None:
    site.cluster.wait_for_end(int(record.job_id))


def test_names_paths_and_values_of_anything_printable_reach_the_job_unchanged(site: Site) -> None:
    text = site.spec.read_text().replace("name: tiny", f"name: {json.dumps(WEIRD)}")
    site.spec.write_text(f"{text}  environment: {json.dumps({'OF_THE_SPEC': VALUE})}\n")
    record = site.submitted("--run-dir", WEIRD, OF_THE_CALLER=VALUE)
    told = site.told()
    folder = site.folder / WEIRD
    assert told["argv"][1:] == ["-m", "hpcflow.job", str(folder), "slurm"]
    environ = told["environ"]
    assert (environ["OF_THE_SPEC"], environ["OF_THE_CALLER"]) == (VALUE, VALUE)
    assert environ["SLURM_JOB_NAME"] == WEIRD
    ended(site, record)
    assert (folder / "batch.log").read_text() == "seen\n"
    job = site.cluster.run("scontrol", "show", "job", record.job_id).stdout
    assert f"Command={folder}/submitit/" in job
    assert record.slurm_conf == str(site.cluster.slurm_conf)


def test_what_is_asked_for_is_what_the_plan_says_whatever_a_person_has_set(site: Site) -> None:
    mine = {"SBATCH_TIMELIMIT": "1", "SBATCH_JOB_NAME": "x", "SBATCH_MEM_PER_NODE": "1", "SBATCH_WAIT": "1"}
    record = site.submitted("--set", "slurm.partition=low", SBATCH_PARTITION="high", **mine)
    job = site.cluster.job(int(record.job_id))
    assert (job["Partition"], job["TimeLimit"], job["JobName"]) == ("low", "00:05:00", "tiny")
    assert (job["NumCPUs"], job["MinMemoryNode"], job["Requeue"]) == ("6", "615M", "1")


def test_a_persons_partition_counts_where_the_spec_names_none(site: Site) -> None:
    record = site.submitted(SBATCH_PARTITION="high")
    assert site.cluster.job(int(record.job_id))["Partition"] == "high"


def test_components_get_partitions_and_features_of_their_own(site: Site) -> None:
    text = site.spec.read_text()
    old = "rollout: {memory_gib_per_rank: 0.1}"
    new = "rollout: {memory_gib_per_rank: 0.1, partition: high, constraint: rack2, gpu_type: h200}"
    assert old in text
    site.spec.write_text(text.replace(old, new) + "  gpus_per_node: 4\n")
    gpus = ("--set", "roles.rollout.gpus_per_node=2", "--set", "roles.rollout.tensor_parallel=2")
    # The engines of this installation need not be those of the nodes in a container.
    record = site.submitted(*gpus, "--set", "slurm.container_prefix=[env]", SBATCH_PARTITION="low")
    rows = site.cluster.run(
        "squeue", "--noheader", "--states=all", f"--jobs={record.job_id}", "--format=%i|%P|%f|%b"
    ).stdout.split()
    assert sorted(rows) == [
        f"{record.job_id}+0|low|(null)|N/A",
        f"{record.job_id}+1|high|rack2|gres:gpu:h200:2",
    ]


def test_submitting_from_inside_an_allocation_leaks_nothing_of_it(site: Site) -> None:
    inside = {
        "SLURM_JOB_ID": "999",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_NTASKS": "3",
        "SLURM_MEM_PER_CPU": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "PMIX_RANK": "1",
        "MASTER_PORT": "1",
    }
    record = site.submitted(**inside)
    environ = site.told()["environ"]
    assert environ["SLURM_JOB_ID"] == record.job_id
    assert environ["SLURM_NTASKS"] == "1"
    leaks = {"SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "CUDA_VISIBLE_DEVICES", "PMIX_RANK", "MASTER_PORT"}
    assert not leaks & set(environ)


def test_a_resumed_run_is_submitted_to_the_cluster_that_it_was_on(site: Site) -> None:
    first = site.submitted()
    ended(site, first)
    site.seen.unlink()
    done = site.hpcflow("resume", str(site.folder / "run"), "--json", SLURM_CONF="/nowhere/slurm.conf")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    second = read_job(RunDir(site.folder / "run"))
    assert second is not None
    assert (told["executor"], told["job_id"]) == ("slurm", second.job_id)
    assert (second.executor, second.slurm_conf) == ("slurm", first.slurm_conf)
    assert int(second.job_id) > int(first.job_id)
    assert site.told()["environ"]["SLURM_CONF"] == first.slurm_conf


BY_SLURM = "Slurm refused the job:\n"
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "partition": (("slurm.partition=nowhere",), "no partition 'nowhere'; there are: high, low, main, short"),
    "time": (
        ("slurm.partition=short", "slurm.time_minutes=11"),
        "11 minutes are more than a job may take: 10",
    ),
    "nodes": (("roles.actor.nodes=8",), "takes 8 nodes that fit it, and partition main has 4"),
    "memory": (("slurm.resources.actor.memory_gib_per_rank=9",), "MiB of memory of a node; at most 8000"),
    "cpus": (("slurm.resources.actor.cpus_per_rank=17",), "CPUs of a node; at most 16 are in partition main"),
    "constraint": (("slurm.constraint=rack1&rack2",), "no node of partition main has rack1&rack2"),
    "option": (("slurm.options.gpu-bindd=x",), f"{BY_SLURM}sbatch: unrecognized option '--gpu-bindd=x'"),
    "nodelist": (
        ("slurm.options.nodelist=node99",),
        f"{BY_SLURM}sbatch: error: Batch job submission failed: ",
    ),
    "licence": (("slurm.options.licenses=x",), "change slurm.options.licenses"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_the_cluster_has_not_is_refused_and_nothing_is_left(site: Site, fault: str) -> None:
    overrides, said = REFUSED[fault]
    wide = ("algorithm.minibatch_samples=32", "algorithm.prompts_per_step=32") if fault == "nodes" else ()
    message = site.refused(*overrides, *wide)
    assert said in message
    assert site.cluster.queue() == []


def wide(nodes: int) -> tuple[str, ...]:
    """An actor on so many nodes of the big cluster, critic and rollout on one of their own each."""
    samples = (f"algorithm.minibatch_samples={4 * nodes}", f"algorithm.prompts_per_step={4 * nodes}")
    gpus = ("slurm.gpus_per_node=8", "roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1")
    actor = ("roles.actor.gpus_per_node=1", f"roles.actor.nodes={nodes}", "communication.collectives=nccl")
    return (*samples, *gpus, *actor, "slurm.shape=hetjob", "slurm.container_prefix=[env]")


def test_a_heterogeneous_job_of_512_nodes_is_taken_and_placed_and_a_larger_one_than_fits_is_not(
    big_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    site = Site(big_cluster, tmp_path, capsys)
    message = site.refused(*wide(1023))
    assert "are components, which never share a node: they take 1025 nodes, and only 1024 fit" in message
    record = site.submitted(*(word for override in wide(510) for word in ("--set", override)))
    command = ("squeue", "--noheader", f"--jobs={record.job_id}", "--format=%i %T %D")
    deadline = time.monotonic() + 20
    placed = [f"{record.job_id}+{number} CONFIGURING {count}" for number, count in enumerate((510, 1, 1))]
    while sorted(big_cluster.run(*command).stdout.splitlines()) != placed:
        assert time.monotonic() < deadline, big_cluster.run(*command).stdout
        time.sleep(0.1)
    big_cluster.drain()


def test_a_silent_controller_is_refused_soon(site: Site, tmp_path: Path) -> None:
    silent = tmp_path / "slurm.conf"
    text = site.cluster.slurm_conf.read_text()
    port = site.cluster.ports[0]
    silent.write_text(text.replace(f"SlurmctldPort={port}", "SlurmctldPort=1"))
    begun = time.monotonic()
    assert "no controller answers" in site.refused(SLURM_CONF=str(silent))
    assert time.monotonic() - begun < 30


FailingSbatch = Callable[[str], Path]


@pytest.fixture
def wrapped(site: Site, tmp_path: Path) -> FailingSbatch:
    """Puts a wrapper of the real sbatch on PATH."""

    def wrap(script: str) -> Path:
        real = site.cluster.run("bash", "-c", "command -v sbatch").stdout.strip()
        folder = tmp_path / "wrapper"
        folder.mkdir()
        path = folder / "sbatch"
        path.write_text(f'#!/bin/bash\nreal() {{ {real} "$@"; }}\n{script}\n')
        path.chmod(0o755)
        return folder

    return wrap


def test_a_job_whose_answer_was_lost_is_found_by_its_script_and_is_the_only_one(
    site: Site, wrapped: FailingSbatch
) -> None:
    lost = 'real "$@" >/dev/null; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'
    path = f"{wrapped(lost)}:{site.cluster.environment()['PATH']}"
    done = site.hpcflow("submit", str(site.spec), "--cluster", "slurm", "--run-dir", "run", PATH=path)
    assert done.returncode == 0, done.stderr
    record = read_job(RunDir(site.folder / "run"))
    assert record is not None
    assert f"job {record.job_id} is there" in done.stdout
    assert site.told()["environ"]["SLURM_JOB_ID"] == record.job_id
    jobs = site.cluster.run("squeue", "--noheader", "--states=all", "--name=tiny", "--format=%i %o").stdout
    assert [job.split()[0] for job in jobs.splitlines() if str(site.folder) in job] == [record.job_id]


def test_a_wrapper_that_greets_is_understood(site: Site, wrapped: FailingSbatch) -> None:
    greeting = wrapped('echo "*** Welcome, 2 jobs of yours run ***"; real "$@"; echo "bye" >&2')
    record = site.submitted(PATH=f"{greeting}:{site.cluster.environment()['PATH']}")
    assert site.told()["environ"]["SLURM_JOB_ID"] == record.job_id


def test_a_job_that_arrives_after_it_was_given_up_ends_at_once(site: Site) -> None:
    record = site.submitted("--set", "slurm.options.hold=true")
    script = next((site.folder / "run" / "submitit").glob("*_submission.sh")).read_text()
    mark = next(word for word in script.split() if "withdrawn_" in word)
    Path(mark).touch()
    site.cluster.run("scontrol", "release", record.job_id)
    site.cluster.wait_for(int(record.job_id), "FAILED")
    assert not site.seen.exists()


def test_a_dry_run_asks_the_cluster_and_changes_nothing(site: Site) -> None:
    done = site.hpcflow("submit", str(site.spec), "--dry-run", "--json", "--set", "slurm.time_minutes=9999")
    shown = json.loads(done.stdout)
    assert done.returncode == 4
    assert shown["executor"] == "slurm"
    assert "9999 minutes are more than a job may take: 1440 in main" in shown["refusal"]
    assert shown["refusal"] in done.stderr
    assert "NODE0" in shown["srun"]["actor"]
    assert site.cluster.queue() == []
