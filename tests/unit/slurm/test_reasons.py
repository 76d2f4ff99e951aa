"""Reasons of a waiting job as plain sentences."""

from __future__ import annotations

import pytest

from hpcflow.slurm.reasons import explain


def test_a_failed_launch_says_how_to_release_the_job() -> None:
    for spelling in ("launch failed requeued held", "launch_failed_requeued_held"):
        found = explain(spelling, "4711")
        assert found is not None
        assert found.stuck
        assert "scontrol release 4711" in found.advice
        assert "sinfo -R" in found.advice


@pytest.mark.parametrize(
    "reason",
    ["Resources", "Priority", "BeginTime", "Dependency", "Licenses", "QOSGrpNodeLimit", "AssocGrpGRES"],
)
def test_a_job_that_will_start_by_itself_is_not_stuck(reason: str) -> None:
    found = explain(reason, "1")
    assert found is not None
    assert not found.stuck


@pytest.mark.parametrize(
    "reason",
    [
        *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "BadConstraints", "JobHeldUser"),
        *("JobHeldAdmin", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS", "QOSMaxGRESPerJob"),
        *("QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "MaxTRESPerJob"),
        "job requeued in held state",
    ],
)
def test_a_job_that_needs_somebody_is_stuck_and_says_what_to_do(reason: str) -> None:
    found = explain(reason, "1")
    assert found is not None
    assert found.stuck
    assert found.advice


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:node[1-2]", "a node that it needs is down, drained or reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "a node that it needs is down, drained or reserved"),
        ("(Resources)", "it is next, and waits until"),
        ("QOSMaxJobsPerUserLimit", "a limit of the QOS is reached (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpCpuLimit", "a limit of your account is reached (AssocGrpCpuLimit)"),
        ("AssocMaxJobsLimit", "a limit of your account is reached"),
    ],
)
def test_a_reason_is_a_sentence(reason: str, sentence: str) -> None:
    found = explain(reason, "1")
    assert found is not None
    assert found.sentence.startswith(sentence)


def test_details_are_kept() -> None:
    found = explain("ReqNodeNotAvail, UnavailableNodes:node[1-2]", "1")
    assert found is not None
    assert found.sentence.endswith("(UnavailableNodes:node[1-2])")


def test_an_own_sentence_of_slurm_with_commas_is_known() -> None:
    text = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    found = explain(text, "1")
    assert found is not None
    assert found.sentence == "nodes that it needs are down, drained or reserved"
    assert explain(f"({text.replace(' ', '_')})", "1") == found


@pytest.mark.parametrize("reason", ["", "SomethingNew", "a reason, with details"])
def test_an_unknown_reason_is_not_explained(reason: str) -> None:
    assert explain(reason, "1") is None
