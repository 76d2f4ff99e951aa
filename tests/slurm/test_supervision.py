"""Steps that fail, on a real cluster. Roles and driver only wait; launcher, agents, supervisor are real."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import psutil
import pytest

from hpcflow.observe.job import read_job
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from tests.support.real_runs import CONFIG, REPOSITORY, RealRun
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_runs import AS_STEPS, MEMORY, MEMORY_GIB, ROLES, SlurmSite, ranks_once, seconds_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

RANKS = 7


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, sums: None) -> Iterator[SlurmSite]:
    yield SlurmSite(tmp_path_factory.mktemp("stand-ins"), cluster, stand_ins=True)
    cluster.drain()


def agent_on(site: SlurmSite, node: str) -> psutil.Process:
    """A node agent of the only run."""
    for process in site.cluster.tasks():
        if "hpcflow.job.node_agent" in process.cmdline() and process.environ()["SLURMD_NODENAME"] == node:
            return process
    raise AssertionError(f"no agent on {node}")


def test_a_step_that_loses_a_node_ends_the_job_and_names_it(site: SlurmSite) -> None:
    real = site.submit("dead step", AS_STEPS)
    node = ranks_once(real, RANKS)["critic.0"].node
    agent_on(site, node).kill()
    assert seconds_until(lambda: not real.living()) < 5
    report = real.ended()
    assert (report.outcome, report.cause) == ("failed", "step_failed")
    assert report.host == node
    assert "Killed" in report.message


def test_a_step_that_cannot_start_on_a_node_ends_the_job_and_names_it(site: SlurmSite) -> None:
    cluster = site.cluster
    cluster.drain()
    with cluster.without_daemon("node4"):
        real = site.submit("failed step", [*AS_STEPS, "slurm.options.nodelist=node[3-4]"])
        report = real.ended()
    assert (report.outcome, report.cause, report.host) == ("failed", "step_failed", "node4")
    assert "node4" in report.message
    assert "sinfo -R" in report.hint
    assert real.left() == []


def test_where_the_node_is_known_every_rank_gets_the_gpus_of_the_plan(site: SlurmSite) -> None:
    site.cluster.drain()
    topology = REPOSITORY / "tests" / "fixtures" / "topology" / "l40s-4.txt"
    whole = (f"slurm.topology={topology}", "slurm.gpus_per_node=4", "slurm.options.exclusive=true")
    # In the order of the roles the critic's pair would be GPUs 1 and 2, on two sockets.
    alone = ("roles.actor.gpus_per_node=1", "roles.actor.ranks_per_node=1")
    pair = ("roles.critic.gpus_per_node=2", "roles.critic.ranks_per_node=2")
    small = [f"slurm.resources.{role}.memory_gib_per_rank=0.5" for role in MEMORY_GIB]
    real = site.submit("known", [*whole, *alone, *pair, *small])
    ranks = ranks_once(real, RANKS)
    plan = Plan.load(real.run.plan_json)
    assert plan.role("critic").gpus_by_node == ((2, 3),)
    planned = {
        f"{role.role}.{rank.rank}": tuple(str(gpu) for gpu in rank.gpus)
        for role in plan.roles
        for rank in role.ranks
    }
    assert {name: rank.gpus for name, rank in ranks.items() if name != "driver.0"} == planned
    assert site.hpcflow("cancel", str(real.run.path)).returncode == 0


def test_a_container_runtime_that_is_not_there_is_named(site: SlurmSite) -> None:
    real = site.submit("no runtime", [*AS_STEPS, "slurm.container_prefix=[/no/such/runtime]"])
    report = real.ended()
    assert (report.outcome, report.cause) == ("failed", "spec")
    assert "/no/such/runtime" in report.message
    assert "slurm.container_prefix" in report.hint
    assert real.left() == []


def test_a_dead_role_ends_all_processes_also_while_the_controller_hangs(site: SlurmSite) -> None:
    site.cluster.drain()
    real = site.submit("hung controller", AS_STEPS)
    rank = ranks_once(real, RANKS)["critic.0"]
    with site.cluster.hung_controller():
        rank.process.kill()
        # `srun` cannot end its step: agents leave after 12 s, and then the supervisor kills `srun`.
        assert seconds_until(lambda: not real.living()) < 25
    report = real.ended()
    assert (report.outcome, report.cause, report.role) == ("failed", "killed", "critic")
    assert report.host == rank.node


def test_submitting_from_inside_an_allocation_leaks_nothing_into_the_job(site: SlurmSite) -> None:
    folder = site.folder / "from inside"
    settings = [f"--set={override}" for override in (*ROLES, *MEMORY, *AS_STEPS)]
    command = [sys.executable, "-m", "hpcflow", "submit", str(CONFIG), "--cluster", "slurm", *settings]
    inner = f"cd {shlex.quote(str(site.folder))}; {shlex.join([*command, '--run-dir', str(folder)])}"
    # An outer job of one core and one GPU, and the worst of its variables.
    outer = site.run(
        *("srun", "--ntasks=1", "--cpus-per-task=1", "--mem=900", "--gpus=1", "bash", "-c", inner),
        SLURM_CPU_BIND="quiet,none",
    )
    assert outer.returncode == 0, outer.stderr
    real = RealRun(RunDir(folder))
    ranks = ranks_once(real, RANKS)
    job = read_job(real.run)
    assert job is not None
    for rank in ranks.values():
        environ = rank.process.environ()
        assert environ["SLURM_JOB_ID"] == job.job_id
        assert "SLURM_CPU_BIND" not in environ or "none" not in environ["SLURM_CPU_BIND"]
    assert len(ranks["actor.0"].gpus) == 1
    cancelled = site.hpcflow("cancel", str(folder))
    assert cancelled.returncode == 0, cancelled.stderr
    assert real.left() == []
