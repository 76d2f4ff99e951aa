"""Steps that fail, on a real cluster. Roles and driver only wait; launcher, agents, supervisor are real."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import psutil
import pytest

from hpcflow.observe.job import read_job
from hpcflow.rundir import RunDir
from tests.support.real_runs import CONFIG, RealRun
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_runs import AS_STEPS, MEMORY, ROLES, SlurmSite, ranks_once, seconds_until

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
