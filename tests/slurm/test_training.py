"""The demo's PPO on a real cluster, as steps of one job over two nodes and as a heterogeneous job over three.

Actor on two ranks, critic and rollout on one, reference and reward on the actor's GPUs. Both runs learn, 20
points of the held-out score and more over the whole; 10 must be there after half of it (standard error of 256
problems: 3). Then the first is cancelled and the second loses a rank.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

from hpcflow.observe.exit_report import ExitReport
from hpcflow.plan.plan import Plan
from tests.support.real_runs import REPOSITORY, RealRun
from tests.support.slurm_cluster import Cluster
from tests.support.slurm_runs import (
    AS_HETJOB,
    AS_STEPS,
    MEMORY_GIB,
    Rank,
    SlurmSite,
    ranks_once,
    seconds_until,
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

HALF = 25
TRAINING = (
    f"steps={2 * HALF}",
    "evaluation.prompts=256",
    f"evaluation.every_steps={HALF}",
    "checkpoint.every_steps=1000",
)
RANKS = {"actor.0", "actor.1", "critic.0", "reference.0", "reward.0", "rollout.0", "driver.0"}


@dataclass(frozen=True)
class Trained:
    """A run that was ended after half of its steps; `gone_after_s` counts from the request or the kill."""

    real: RealRun
    ranks: dict[str, Rank]
    requested_mib: list[int]
    report: ExitReport
    gone_after_s: float
    printed: str
    left: list[str]


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, sums: None) -> Iterator[SlurmSite]:
    yield SlurmSite(tmp_path_factory.mktemp("it's a site"), cluster)
    cluster.drain()


@pytest.fixture(scope="module")
def cancelled(site: SlurmSite) -> Trained:
    """As steps; cancelled by its user."""
    real = site.submit("as steps", [*AS_STEPS, *TRAINING])
    ranks = ranks_once(real, len(RANKS))
    memory = asked_memory(site, real)
    real.wait_for_step(HALF + 1)
    done = site.hpcflow("cancel", str(real.run.path))
    took = seconds_until(lambda: not real.living())
    assert done.returncode == 0, done.stderr
    return Trained(real, ranks, memory, real.ended(), took, done.stdout, real.left(0))


@pytest.fixture(scope="module")
def bereft(site: SlurmSite) -> Trained:
    """As a heterogeneous job; its critic is killed."""
    real = site.submit("as hetjob", [*AS_HETJOB, *TRAINING])
    ranks = ranks_once(real, len(RANKS))
    memory = asked_memory(site, real)
    real.wait_for_step(HALF + 1)
    ranks["critic.0"].process.kill()
    took = seconds_until(lambda: not real.living())
    status = site.hpcflow("status", str(real.run.path), "--json")
    return Trained(real, ranks, memory, real.ended(), took, status.stdout, real.left(0))


@pytest.fixture(params=["cancelled", "bereft"])
def trained(request: pytest.FixtureRequest) -> Trained:
    found: Trained = request.getfixturevalue(request.param)
    return found


def asked_memory(site: SlurmSite, real: RealRun) -> list[int]:
    """MiB per node, by component."""
    shown = site.cluster.run("scontrol", "--oneliner", "show", "job", str(site.job_of(real))).stdout
    values = [word.partition("=")[2] for word in shown.split() if word.startswith("MinMemoryNode=")]
    unit = {"M": 1, "G": 1024}
    return [round(float(value[:-1]) * unit[value[-1]]) for value in values]


def test_it_learns(trained: Trained) -> None:
    scores = trained.real.heldout()
    assert scores[HALF] - scores[0] >= 0.10, scores


def test_every_rank_starts_within_seconds_under_a_tight_memory_limit(trained: Trained) -> None:
    assert set(trained.ranks) == RANKS
    starts = [rank.started for rank in trained.ranks.values()]
    assert max(starts) - min(starts) < 15
    plan = Plan.load(trained.real.run.plan_json)
    per_component = [component.memory_mib_per_node for component in plan.components]
    assert trained.requested_mib == per_component
    on_first = 2 * MEMORY_GIB["actor"] + MEMORY_GIB["reference"] + MEMORY_GIB["reward"] + 1.25
    assert per_component[0] == on_first * 1024, "nothing is to spare"


def test_sets_of_roles_that_share_none_are_disjoint(trained: Trained) -> None:
    ranks = trained.ranks
    places = {name: {(rank.node, gpu) for gpu in rank.gpus} for name, rank in ranks.items()}
    for one, other in combinations(("actor.0", "actor.1", "critic.0", "rollout.0"), 2):
        assert len(places[one]) == len(places[other]) == 1
        assert not places[one] & places[other], (one, other)
    assert places["reference.0"] == places["reward.0"] == places["actor.0"]
    assert places["driver.0"] == set()


def test_roles_are_on_the_nodes_of_the_plan(cancelled: Trained, bereft: Trained) -> None:
    def nodes(trained: Trained) -> list[set[str]]:
        groups = (
            ("actor.0", "actor.1", "reference.0", "reward.0", "driver.0"),
            ("critic.0",),
            ("rollout.0",),
        )
        return [{trained.ranks[name].node for name in group} for group in groups]

    first, critic, rollout = nodes(cancelled)
    assert len(first) == 1
    assert critic == rollout != first
    apart = nodes(bereft)
    assert len(set.union(*apart)) == 3


def test_weights_arrive_exactly(trained: Trained) -> None:
    assert max(trained.real.figures("rollout_logprob_difference")) < 1e-4


def test_a_cancel_saves_and_leaves_no_process(site: SlurmSite, cancelled: Trained) -> None:
    report = cancelled.report
    assert (report.outcome, report.cause) == ("stopped", "stopped")
    assert cancelled.real.run.checkpoint_steps() == [report.step]
    assert report.step is not None
    assert HALF < report.step < 2 * HALF
    assert cancelled.left == []
    assert f"step {report.step}" in cancelled.printed
    status = json.loads(site.hpcflow("status", str(cancelled.real.run.path), "--json").stdout)
    assert status["state"] == "stopped"
    job = site.cluster.job(site.job_of(cancelled.real))
    assert (job["Restarts"], job["ExitCode"]) == ("0", "130:0"), "a person's stop is not requeued"


def test_a_killed_rank_ends_the_whole_job_within_5_s(site: SlurmSite, bereft: Trained) -> None:
    report = bereft.report
    assert (report.outcome, report.cause) == ("failed", "killed")
    assert (report.role, report.rank, report.signal) == ("critic", 0, signal.SIGKILL)
    assert report.host == bereft.ranks["critic.0"].node
    assert bereft.gone_after_s < 5
    assert json.loads(bereft.printed)["state"] == "failed"
    assert site.cluster.job(site.job_of(bereft.real))["Restarts"] == "0"


def test_logs_of_steps_are_merged(site: SlurmSite, bereft: Trained) -> None:
    done = site.hpcflow("logs", str(bereft.real.run.path))
    assert done.returncode == 0
    assert "critic rank 0 ended: -9" in done.stdout
    node = bereft.ranks["rollout.0"].node
    assert f"started rollout rank 0 on {node}" in done.stdout


@pytest.mark.parametrize("name", ["ppo-one-node", "ppo-hetjob"])
def test_a_plain_script_runs_without_the_tools_submit(site: SlurmSite, name: str, tmp_path: Path) -> None:
    keys = (
        "steps=2",
        "evaluation.prompts=16",
        "algorithm.prompts_per_step=32",
        "algorithm.minibatch_samples=64",
    )
    small = (*keys, "roles.actor.microbatch_per_gpu=16", "roles.critic.microbatch_per_gpu=16")
    warm = [f"roles.{role}.optimizer.warmup_steps=0" for role in ("actor", "critic")]
    script = (REPOSITORY / "sbatch" / "examples" / f"{name}.sbatch").read_text()
    edited = tmp_path / f"{name}.sbatch"
    edited.write_text(script.replace("\n)\n", f"\n{' '.join((*small, *warm))}\n)\n"))
    run = tmp_path / "a run"
    answer = site.cluster.run(
        "sbatch", "--parsable", str(edited), cwd=tmp_path, REPOSITORY=str(REPOSITORY), RUN=str(run)
    )
    site.cluster.wait_for_end(int(answer.stdout), timeout_s=180)
    status = json.loads(site.hpcflow("status", str(run), "--json").stdout)
    assert (status["state"], status["step"]) == ("done", 2)
