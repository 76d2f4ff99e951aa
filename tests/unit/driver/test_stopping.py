"""A run that is asked to stop loses nothing that was trained, and goes on as if it had never stopped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcflow.driver.stopping import Stopped
from hpcflow.errors import JobFault
from hpcflow.observe.state import read_state
from tests.support.small_run import SmallRun, small_run

# The held-out set takes the first call and, in these runs, one after steps 2 and 4.
GENERATE_OF_STEP = {1: 2, 2: 3, 3: 5, 4: 6}
ADAPTIVE = ("algorithm.kl.coefficient=0.1", "algorithm.kl.target=0.25", "algorithm.kl.horizon=8")
MOMENTARY = {"attempt", "time", "seconds", "tokens_per_second"}


def stop_in(run: SmallRun, name: str, number: int) -> None:
    """Have a stop request arrive while rank 0 serves this call."""
    run.log.at(name, number, lambda: run.stop.request(12))


def stopped(run: SmallRun, *, after: int) -> None:
    with pytest.raises(Stopped, match=re.escape(f"stopped after step {after} (signal 12)")):
        run.trainer.run()


def lasting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what is of one attempt or of one moment."""
    return [{key: value for key, value in row.items() if key not in MOMENTARY} for row in rows]


def straight(folder: Path, *overrides: str) -> SmallRun:
    with small_run(folder, *overrides) as run:
        run.trainer.run()
    return run


def test_a_stop_before_the_first_step_leaves_a_checkpoint_to_begin_from(tmp_path: Path) -> None:
    whole = straight(tmp_path / "straight")
    with small_run(tmp_path / "run") as run:
        stop_in(run, "actor.send_weights", 1)
        stopped(run, after=0)
        assert run.folder.checkpoint_steps() == [0]
        assert "rollout.generate" not in run.log.names
    with small_run(tmp_path / "run", attempt=2) as run:
        run.trainer.run()
        assert lasting(run.rows("train")) == lasting(whole.rows("train"))
        assert lasting(run.rows("heldout")) == lasting(whole.rows("heldout"))


def test_a_stop_after_generation_trains_nothing_and_the_prompts_come_again(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        stop_in(run, "rollout.generate", GENERATE_OF_STEP[2])
        stopped(run, after=1)
        assert run.log.names.count("actor.update") == run.log.names.count("critic.update") == 1
        assert run.folder.checkpoint_steps() == [1]
        dropped = run.log.requests("rollout.generate")[-1]
    with small_run(tmp_path, attempt=2) as run:
        run.trainer.run()
        assert run.log.requests("rollout.generate")[0] == dropped


def test_a_stop_right_after_a_checkpoint_does_not_save_it_again(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        stop_in(run, "rollout.generate", GENERATE_OF_STEP[3])
        stopped(run, after=2)
        assert run.log.names.count("actor.save") == 1
        assert [row["step"] for row in run.rows("save")] == [2]


def test_a_run_that_is_stopping_saves_and_leaves_out_the_evaluation_that_is_due(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        stop_in(run, "actor.update", 2)
        stopped(run, after=2)
        assert [row["step"] for row in run.rows("heldout")] == [0]
        assert run.log.name_sets[-2:] == [
            {"rollout.receive_weights", "actor.send_weights"},
            {"actor.save", "critic.save"},
        ]
        assert run.folder.checkpoint_steps() == [2]


def test_a_stop_during_the_last_step_lets_the_run_finish(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        stop_in(run, "actor.update", 4)
        run.trainer.run()
        assert [row["step"] for row in run.rows("heldout")] == [0, 2, 4]
        assert run.folder.checkpoint_steps() == [2, 4]
    state = read_state(run.folder)
    assert state is not None
    assert state.phase == "done"


@pytest.mark.parametrize(
    ("name", "number", "after"),
    [
        pytest.param("rollout.generate", GENERATE_OF_STEP[1], 0, id="in the first step"),
        pytest.param("actor.update", 1, 1, id="after one step"),
        pytest.param("rollout.generate", GENERATE_OF_STEP[3], 2, id="in a step after a checkpoint"),
        pytest.param("actor.update", 3, 3, id="with one step left"),
    ],
)
def test_a_resumed_run_trains_as_the_straight_run(tmp_path: Path, name: str, number: int, after: int) -> None:
    """Position, samples, weights of both models and the weight of the KL are those of the straight run."""
    whole = straight(tmp_path / "straight", *ADAPTIVE)
    with small_run(tmp_path / "run", *ADAPTIVE) as run:
        stop_in(run, name, number)
        stopped(run, after=after)
    with small_run(tmp_path / "run", *ADAPTIVE, attempt=2) as run:
        run.trainer.run()
        assert run.prompts_asked() == whole.prompts_asked()[after:]
        assert lasting(run.rows("train")) == lasting(whole.rows("train"))
        assert [row["attempt"] for row in run.rows("train")] == [1] * after + [2] * (4 - after)
        assert run.roles.critic[0].weight == pytest.approx(whole.roles.critic[0].weight)
        assert run.trainer.kl == whole.trainer.kl


def test_a_resumed_run_loads_both_models_then_publishes_the_version_of_its_checkpoint(tmp_path: Path) -> None:
    with small_run(tmp_path, "roles.actor.ranks_per_node=2") as run:
        stop_in(run, "actor.update", 3)
        stopped(run, after=3)
        before = run.rows("heldout")[0]["score"]
    with small_run(tmp_path, "roles.actor.ranks_per_node=2", attempt=2) as run:
        run.trainer.run()
        assert run.log.name_sets[0] == {"actor.load", "critic.load"}
        folders = {request.folder for request in run.log.requests("actor.load")[0]}
        assert folders == {str(run.folder.checkpoint(3))}
        assert run.log.requests("rollout.receive_weights")[0][0].version == 3
        # No second evaluation "before": the score of the first attempt stands.
        assert [row["step"] for row in run.rows("heldout")] == [0, 2, 4]
    state = read_state(run.folder)
    assert state is not None
    assert state.heldout_before == before


def test_skipped_steps_are_counted_on_after_a_resume(tmp_path: Path) -> None:
    limit = "health.max_skipped_steps=2"
    with small_run(tmp_path, limit) as run:
        run.roles.actor[0].skipping = True
        stop_in(run, "actor.update", 2)
        stopped(run, after=2)
    with small_run(tmp_path, limit, attempt=2) as run:
        run.roles.actor[0].skipping = True
        with pytest.raises(JobFault, match="in 3 steps in a row, up to step 3"):
            run.trainer.run()


def test_after_a_fault_the_next_attempt_repeats_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    def fail() -> None:
        raise JobFault("gone", cause="role_error", role="actor")

    whole = straight(tmp_path / "straight", *ADAPTIVE)
    with small_run(tmp_path / "run", *ADAPTIVE) as run:
        run.log.at("actor.update", 4, fail)
        with pytest.raises(JobFault, match="gone"):
            run.trainer.run()
    with small_run(tmp_path / "run", *ADAPTIVE, attempt=2) as run:
        run.trainer.run()
        assert run.prompts_asked() == whole.prompts_asked()[2:]
        rows = run.rows("train")
        assert [row["step"] for row in rows] == [1, 2, 3, 3, 4]
        assert lasting(rows[:3] + rows[4:]) == lasting(whole.rows("train"))


def test_an_attempt_after_the_last_step_trains_nothing_and_is_done(tmp_path: Path) -> None:
    straight(tmp_path)
    with small_run(tmp_path, attempt=2) as run:
        run.trainer.run()
        assert not {"actor.update", "actor.save", "rollout.generate"} & set(run.log.names)
    state = read_state(run.folder)
    assert state is not None
    assert (state.phase, state.step) == ("done", 4)
