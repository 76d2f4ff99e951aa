"""The order of a run: who is called beside whom, and when weights, scores, checkpoints and rows come."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpcflow.errors import JobFault
from hpcflow.observe.state import read_state
from tests.support.fake_groups import RESIDENT_BYTES
from tests.support.fake_roles import FakeTrained
from tests.support.small_run import HELD_OUT, SAMPLES, SmallRun, small_run

OPEN = [{"actor.listen_weights"}, {"actor.open_weights", "rollout.open_weights"}]
PUBLISH = [{"rollout.receive_weights", "actor.send_weights"}]
EVALUATE = [{"rollout.generate"}, {"reward.score"}]
TRAIN = [
    {"rollout.generate"},
    {"actor.logprobs", "critic.values", "reference.logprobs", "reward.score"},
    {"critic.update", "actor.update"},
]
SAVE = [{"actor.save", "critic.save"}]

TRAIN_FIGURES = {
    "reward": float,
    "samples": int,
    "faulty_samples": int,
    "response_length": float,
    "rollout_logprob_difference": float,
    "rollout_logprob_difference_mean": float,
    "loss": float,
    "grad_norm": float,
    "learning_rate": float,
    "policy_kl": float,
    "clip_fraction": float,
    "ratio_max": float,
    "optimizer_steps": int,
    "skipped": int,
    "value_loss": float,
    "critic_grad_norm": float,
    "critic_skipped": int,
    "kl": float,
    "kl_coefficient": float,
    "response_tokens": int,
    "tokens_per_second": float,
    "seconds": dict,
    "resident_bytes": dict,
}
HEAD = {"kind": str, "attempt": int, "step": int, "time": float}


def types(row: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in row.items()}


def steps(run: SmallRun, kind: str) -> list[int]:
    return [row["step"] for row in run.rows(kind)]


def test_the_roles_of_a_run_are_called_in_this_order(tmp_path: Path) -> None:
    with small_run(tmp_path, "steps=3") as run:
        run.trainer.run()
        first = [*OPEN, *PUBLISH, *EVALUATE]
        plain = [*TRAIN, *PUBLISH]
        whole = [*plain, *EVALUATE, *SAVE]
        assert run.log.name_sets == [*first, *plain, *whole, *whole]
        assert run.log.names.count("rollout.generate") == 3 + 3


def test_a_run_without_a_reference_calls_none_and_measures_no_kl(tmp_path: Path) -> None:
    with small_run(tmp_path, "roles.reference=null", "algorithm.kl.coefficient=0") as run:
        run.trainer.run()
        assert not any(name.startswith("reference.") for name in run.log.names)
        assert [(row["kl"], row["kl_coefficient"]) for row in run.rows("train")] == [(0.0, 0.0)] * 4


def test_samples_are_drawn_with_the_weights_of_the_step_before(tmp_path: Path) -> None:
    with small_run(tmp_path, "roles.rollout.ranks_per_node=2") as run:
        seen: list[int] = []
        for number in range(1, 8):
            run.log.at("rollout.generate", number, lambda: seen.append(run.roles.rollout[0].version))
        run.trainer.run()
        # Held-out samples at 0, 2 and 4, and those of steps 1 to 4.
        assert seen == [0, 0, 1, 2, 2, 3, 4]
        for name in ("actor.send_weights", "rollout.receive_weights"):
            versions = [{request.version for request in call} for call in run.log.requests(name)]
            assert versions == [{0}, {1}, {2}, {3}, {4}]
        assert [engine.version for engine in run.roles.rollout] == [4, 4]


def test_every_engine_joins_the_weight_group_at_the_port_of_the_actors_first_rank(tmp_path: Path) -> None:
    ranks = ("roles.actor.ranks_per_node=2", "roles.rollout.ranks_per_node=2")
    with small_run(tmp_path, *ranks) as run:
        run.trainer.run()
        (rollout,), (actor,) = (run.log.requests(f"{role}.open_weights") for role in ("rollout", "actor"))
        assert [request.rank for request in rollout] == [1, 2]
        assert {(request.port, request.world_size) for request in (*rollout, *actor)} == {(1000, 3)}
        assert {request.rank for request in actor} == {0}


@pytest.mark.parametrize(
    ("last", "every", "evaluated", "saved"),
    [
        pytest.param(4, 2, [0, 2, 4], [2, 4], id="the last step is due anyway"),
        pytest.param(5, 2, [0, 2, 4, 5], [2, 4, 5], id="the last step is not due"),
        pytest.param(2, 9, [0, 2], [2], id="longer than the run"),
    ],
)
def test_scores_and_checkpoints_come_every_so_often_and_at_the_end_once(
    tmp_path: Path, last: int, every: int, evaluated: list[int], saved: list[int]
) -> None:
    often = (f"evaluation.every_steps={every}", f"checkpoint.every_steps={every}")
    with small_run(tmp_path, f"steps={last}", *often) as run:
        run.trainer.run()
        assert steps(run, "heldout") == evaluated
        assert steps(run, "save") == saved
        assert run.log.names.count("actor.save") == run.log.names.count("critic.save") == len(saved)
        assert run.folder.checkpoint_steps() == saved


def test_evaluations_are_greedy_with_the_same_seeds_and_train_nothing(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        run.trainer.run()
        greedy = [call for (call,) in run.log.requests("rollout.generate") if call.temperature == 0]
        assert len(greedy) == 3
        assert greedy[0] == greedy[1] == greedy[2]
        assert run.log.names.count("actor.update") == 4


def test_a_finished_run_says_so_and_knows_its_first_and_last_score(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        run.trainer.run()
        scores = [row["score"] for row in run.rows("heldout")]
    state = read_state(run.folder)
    assert state is not None
    assert (state.phase, state.step, state.checkpoint_step) == ("done", 4, 4)
    assert (state.heldout_before, state.heldout) == (scores[0], scores[-1])
    assert scores[0] != scores[-1]


def test_the_rows_of_a_run_are_complete(tmp_path: Path) -> None:
    with small_run(tmp_path, attempt=3) as run:
        run.trainer.run()
        for row in run.rows("train"):
            assert types(row) == HEAD | TRAIN_FIGURES
            assert row["seconds"].keys() == {"generate", "judge", "update", "weights", "step", "driver"}
            roles = ("actor", "critic", "reference", "reward", "rollout")
            assert row["resident_bytes"] == {f"{role}.0": RESIDENT_BYTES for role in roles}
            assert (row["attempt"], row["samples"], row["optimizer_steps"]) == (3, SAMPLES, 2)
            assert row["response_tokens"] == pytest.approx(row["response_length"] * SAMPLES)
        heldout = {"score": float, "prompts": int, "faulty_samples": int, "seconds": dict}
        for row in run.rows("heldout"):
            assert types(row) == HEAD | heldout
            assert (row["prompts"], row["faulty_samples"]) == (HELD_OUT, 0)
        assert [types(row) for row in run.rows("save")] == [HEAD | {"seconds": dict}] * 2


def test_the_adaptive_weight_of_the_kl_follows_the_kl_that_was_measured(tmp_path: Path) -> None:
    """The fake actor is at 0.25 nats, its target, in step 1 and gains 0.02 per step."""
    kl = ("coefficient=0.1", "target=0.25", f"horizon={SAMPLES}")
    with small_run(tmp_path, "steps=3", *(f"algorithm.kl.{setting}" for setting in kl)) as run:
        run.trainer.run()
        rows = run.rows("train")
        assert [row["kl"] for row in rows] == pytest.approx([0.25, 0.27, 0.29], abs=1e-6)
        # A row tells the weight that its step used: the KL of a step acts on the next one.
        assert [row["kl_coefficient"] for row in rows] == pytest.approx([0.1, 0.1, 0.108], abs=1e-6)
        assert run.trainer.kl.beta == pytest.approx(0.108 * 1.16, abs=1e-6)


def test_a_fault_of_a_role_ends_the_run_without_a_checkpoint(tmp_path: Path) -> None:
    def fail() -> None:
        raise JobFault("no memory is left", cause="out_of_memory", role="critic", rank=0)

    with small_run(tmp_path) as run:
        run.log.at("critic.update", 3, fail)
        with pytest.raises(JobFault, match=r"critic rank 0 .* update failed: no memory is left") as caught:
            run.trainer.run()
        assert caught.value.cause == "out_of_memory"
        assert steps(run, "train") == [1, 2]
        assert run.folder.checkpoint_steps() == [2]
        assert run.log.names[-2:] == ["critic.update", "actor.update"]


def test_a_kl_that_is_not_finite_ends_the_run_without_a_checkpoint(tmp_path: Path) -> None:
    adaptive = ("algorithm.kl.target=0.25", "checkpoint.every_steps=1")
    with small_run(tmp_path, *adaptive) as run:
        run.roles.reference[0].level = math.nan
        with pytest.raises(JobFault, match="the KL to the reference is nan at step 1") as caught:
            run.trainer.run()
        assert (caught.value.cause, caught.value.role) == ("non_finite", "actor")
        assert [row["kl"] for row in run.rows("train")] == [None]
        assert run.folder.checkpoint_steps() == []


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_steps_that_change_no_weight_end_the_run_above_the_limit(tmp_path: Path, role: str) -> None:
    with small_run(tmp_path, "health.max_skipped_steps=2") as run:
        rank: dict[str, FakeTrained] = {"actor": run.roles.actor[0], "critic": run.roles.critic[0]}
        rank[role].skipping = True
        with pytest.raises(JobFault, match="in 3 steps in a row, up to step 3") as caught:
            run.trainer.run()
        assert (caught.value.cause, caught.value.role) == ("non_finite", role)
        key = "skipped" if role == "actor" else "critic_skipped"
        assert [row[key] for row in run.rows("train")] == [2, 2, 2]
        assert run.folder.checkpoint_steps() == [2]
