"""Every job state that Slurm documents, in all spellings, and those that it does not document yet."""

from __future__ import annotations

from itertools import permutations

import pytest

from hpcflow.slurm.state import DOCUMENTED, Phase, overall, parse_state

# The codes of squeue's manual, and what each means for a run.
CODES = {
    "BF": ("BOOT_FAIL", "over"),
    "CA": ("CANCELLED", "over"),
    "CD": ("COMPLETED", "over"),
    "CF": ("CONFIGURING", "starting"),
    "CG": ("COMPLETING", "ending"),
    "DL": ("DEADLINE", "over"),
    "F": ("FAILED", "over"),
    "NF": ("NODE_FAIL", "over"),
    "OOM": ("OUT_OF_MEMORY", "over"),
    "PD": ("PENDING", "queued"),
    "PR": ("PREEMPTED", "over"),
    "R": ("RUNNING", "running"),
    "RD": ("RESV_DEL_HOLD", "held"),
    "RF": ("REQUEUE_FED", "queued"),
    "RH": ("REQUEUE_HOLD", "held"),
    "RQ": ("REQUEUED", "queued"),
    "RS": ("RESIZING", "running"),
    "RV": ("REVOKED", "over"),
    "SI": ("SIGNALING", "running"),
    "SE": ("SPECIAL_EXIT", "held"),
    "SO": ("STAGE_OUT", "ending"),
    "ST": ("STOPPED", "paused"),
    "S": ("SUSPENDED", "paused"),
    "TO": ("TIMEOUT", "over"),
}


def test_all_documented_states_are_listed() -> None:
    assert len(CODES) == 24
    assert sorted(DOCUMENTED) == sorted(name for name, _ in CODES.values())


@pytest.mark.parametrize("code", CODES)
def test_a_state_is_known_by_its_code_and_its_name(code: str) -> None:
    name, phase = CODES[code]
    for text in (code, name, name.lower(), f" {name}\n", f"{name}+"):
        state = parse_state(text)
        assert (state.name, state.phase.value, state.known) == (name, phase, True)
        assert state.meaning


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("CONFIGURI+", "CONFIGURING"), ("OUT_OF_ME+", "OUT_OF_MEMORY"), ("RESV_DEL_+", "RESV_DEL_HOLD")),
        *(("SPECIAL_E+", "SPECIAL_EXIT"), ("REQUEUE_H+", "REQUEUE_HOLD"), ("REQUEUE_F+", "REQUEUE_FED")),
    ],
)
def test_a_state_that_sacct_cut_is_known(text: str, name: str) -> None:
    assert parse_state(text).name == name


@pytest.mark.parametrize("text", ["CANCELLED by 54321", "cancelled by 54321", "CANCELLED by 54321+"])
def test_who_cancelled_is_kept(text: str) -> None:
    state = parse_state(text)
    assert (state.name, state.terminal, state.good, state.by) == ("CANCELLED", True, False, "54321")
    assert "54321" in state.meaning


@pytest.mark.parametrize("text", ["FOO_NEW", "COMPLETED_BADLY", "XX", "", "REQUEUE_+", "C+", "CANCELLED BY"])
def test_an_unknown_state_is_kept_and_is_nothing(text: str) -> None:
    state = parse_state(text)
    assert (state.name, state.phase) == (text, Phase.UNKNOWN)
    assert not any((state.known, state.good, state.terminal, state.active, state.waiting))


def test_only_completed_is_good() -> None:
    assert [name for name in DOCUMENTED if parse_state(name).good] == ["COMPLETED"]


def test_a_preempted_job_is_not_done_with() -> None:
    state = parse_state("PREEMPTED")
    assert (state.terminal, state.may_return, state.active, state.good) == (False, True, False, False)


def test_states_that_end_a_job_for_good() -> None:
    ends = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT"
    assert sorted(name for name in DOCUMENTED if parse_state(name).terminal) == ends.split()


def test_states_in_which_a_job_has_nodes() -> None:
    active = "COMPLETING CONFIGURING RESIZING RUNNING SIGNALING STAGE_OUT STOPPED SUSPENDED"
    assert sorted(name for name in DOCUMENTED if parse_state(name).active) == active.split()


def test_states_that_pass_by_themselves() -> None:
    passing = "COMPLETING CONFIGURING PREEMPTED REQUEUED REQUEUE_FED RESIZING SIGNALING STAGE_OUT"
    assert sorted(name for name in DOCUMENTED if parse_state(name).transient) == passing.split()


@pytest.mark.parametrize(
    ("components", "whole"),
    [
        ("RUNNING", "RUNNING"),
        ("RUNNING PENDING", "PENDING"),
        ("RUNNING CONFIGURING", "CONFIGURING"),
        ("RUNNING SUSPENDED", "SUSPENDED"),
        ("COMPLETED RUNNING", "RUNNING"),
        ("CANCELLED COMPLETING", "COMPLETING"),
        ("COMPLETED COMPLETED", "COMPLETED"),
        ("COMPLETED CANCELLED", "CANCELLED"),
        ("COMPLETED FAILED CANCELLED", "FAILED"),
        ("FAILED NODE_FAIL CANCELLED", "NODE_FAIL"),
        ("PENDING REQUEUE_HOLD", "REQUEUE_HOLD"),
        ("COMPLETED FOO_NEW", "FOO_NEW"),
        ("COMPLETED BOOT_FAIL", "BOOT_FAIL"),
        ("PREEMPTED PENDING", "PENDING"),
    ],
)
def test_the_least_advanced_component_decides(components: str, whole: str) -> None:
    for order in permutations(components.split()):
        assert overall([parse_state(name) for name in order]).name == whole


def test_any_two_documented_states_have_an_overall_one() -> None:
    for one in DOCUMENTED:
        for other in DOCUMENTED:
            assert overall([parse_state(one), parse_state(other)]).name in (one, other)
