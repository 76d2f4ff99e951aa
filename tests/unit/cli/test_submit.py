"""What a submission prints, and the placement that a plan, a dry run and a submission show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcflow.cli.render import placement_text, plan_text
from hpcflow.cli.submit import submitted_record, submitted_text
from hpcflow.launch.submit import Submitted
from hpcflow.observe.job import JobRecord
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from tests.support.golden import check_golden
from tests.support.specs import tiny_spec

HETJOB = (
    *("slurm.gpus_per_node=2", "slurm.shape=hetjob", "communication.collectives=nccl"),
    *("roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2", "roles.actor.nodes=3"),
    *("roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1"),
    *("roles.reference.gpus_per_node=1", "roles.reference.share_with=actor"),
    *("slurm.partition=main", "slurm.resources.rollout.gpu_type=l40s"),
    *("algorithm.minibatch_samples=48", "algorithm.prompts_per_step=48"),
)


def hetjob(folder: Path) -> Plan:
    return build(tiny_spec(folder, *HETJOB))


def submitted(plan: Plan, *, executor: str = "slurm", attempt: int = 1) -> Submitted:
    record = JobRecord(
        executor="slurm" if executor == "slurm" else "local",
        job_id="4711",
        submitted="2026-12-01T12:00:00+00:00",
        attempt=attempt,
    )
    notes = ("a Slurm controller answers: submitting to it",)
    return Submitted(RunDir(Path("/data/my runs/a 'b'")), plan, record, notes, 20 if attempt > 1 else None)


def test_a_submission_shows_the_placement_and_the_commands(tmp_path: Path) -> None:
    text = submitted_text(submitted(hetjob(tmp_path), attempt=2), follow=False)
    check_golden("submit/slurm.txt", text + "\n")


def test_a_local_submission_stays_short(tmp_path: Path) -> None:
    text = submitted_text(submitted(hetjob(tmp_path), executor="local"), follow=True)
    assert "Slurm job" not in text
    assert "watch it" not in text
    assert len(text.splitlines()) == 4


def test_a_program_reads_shape_and_steps(tmp_path: Path) -> None:
    record = json.loads(json.dumps(submitted_record(submitted(hetjob(tmp_path)))))
    assert (record["event"], record["executor"], record["job_id"]) == ("submitted", "slurm", "4711")
    assert record["shape"]["kind"] == "hetjob"
    assert [step["name"] for step in record["steps"]] == ["actor+reference", "critic", "reward", "rollout"]
    assert record["notes"] == ["a Slurm controller answers: submitting to it"]


def test_a_plan_shows_its_components_and_steps(tmp_path: Path) -> None:
    check_golden("plans/hetjob.txt", plan_text(hetjob(tmp_path)))


def test_sets_that_differ_are_shown_by_node(tmp_path: Path) -> None:
    plan = hetjob(tmp_path)
    actor = replace(plan.role("actor"), gpus_by_node=((0, 1), (2, 3), (0, 1)))
    text = placement_text(replace(plan, roles=(actor, *plan.roles[1:])))
    assert "node 0,2: 0,1; node 1: 2,3" in text


@pytest.mark.parametrize("nodes", [512])
def test_many_nodes_take_one_short_line(tmp_path: Path, nodes: int) -> None:
    samples = nodes * 4
    sizes = (f"algorithm.minibatch_samples={samples}", f"algorithm.prompts_per_step={samples}")
    plan = build(tiny_spec(tmp_path, *HETJOB, *sizes, f"roles.actor.nodes={nodes}"))
    assert max(len(line) for line in placement_text(plan).splitlines()) < 160
    assert f"actor      0-{nodes - 1}" in placement_text(plan)
