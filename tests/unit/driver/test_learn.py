"""One training step: each rank gets its rows, all the same denominators, and the KL where it is placed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcflow.algorithms.kl import FixedKl
from hpcflow.driver.clock import StepClock
from hpcflow.driver.experience import Experience
from hpcflow.driver.learn import Learned
from tests.support.fake_roles import REFERENCE_GAP
from tests.support.small_run import SAMPLES, SmallRun, numbered_prompts, small_run

TWO_ACTORS = "roles.actor.ranks_per_node=2"
TWO_EPOCHS = "algorithm.epochs=2"
KL_IN_LOSS = "algorithm.kl.placement=loss"
NO_WHITENING = "algorithm.whiten_advantages=false"


def learn(run: SmallRun, *, beta: float = 0.1) -> tuple[Experience, Learned]:
    """Train on one step's samples."""
    experience = run.trainer.collector.collect(1, numbered_prompts(4), StepClock())
    return experience, run.trainer.learner.learn(1, experience, FixedKl(beta), StepClock())


def updates(run: SmallRun, role: str) -> list[Any]:
    """The request that each rank of a role got."""
    (requests,) = run.log.requests(f"{role}.update")
    return requests


def rows_of(update: Any, experience: Experience) -> list[int]:
    """Which rows of the step an update holds, told by their tokens."""
    step = [tuple(row) for row in experience.batch.tokens.tolist()]
    assert len(set(step)) == SAMPLES
    return [step.index(tuple(row)) for row in update.batch.tokens.tolist()]


def returns_by_row(run: SmallRun, experience: Experience) -> np.ndarray:
    (update,) = updates(run, "critic")
    order = np.argsort(rows_of(update, experience))
    return np.asarray(update.returns)[order]


def test_each_rank_gets_its_share_of_every_minibatch(tmp_path: Path) -> None:
    with small_run(tmp_path, TWO_ACTORS, TWO_EPOCHS) as run:
        experience, _ = learn(run)
        first, second = updates(run, "actor")
        (critic,) = updates(run, "critic")
        rows = {
            name: np.array(rows_of(update, experience))
            for name, update in (("first", first), ("second", second), ("critic", critic))
        }
    parts = [rows["first"][first.minibatches.order], rows["second"][second.minibatches.order]]
    assert [part.shape for part in parts] == [(4, 2), (4, 2)]
    together = np.concatenate(parts, axis=1)
    for epoch in (together[:2], together[2:]):
        assert sorted(epoch.ravel()) == list(range(SAMPLES))
    # Actor and critic see the same minibatches, whatever their numbers of ranks.
    assert np.sort(together).tolist() == np.sort(rows["critic"][critic.minibatches.order]).tolist()


def test_all_ranks_divide_by_the_tokens_of_the_whole_minibatch(tmp_path: Path) -> None:
    with small_run(tmp_path, TWO_ACTORS, "health.max_faulty_rewards=0.5") as run:
        run.roles.reward[0].failing = {1}
        experience, learned = learn(run)
        everyone = [*updates(run, "actor"), *updates(run, "critic")]
        (critic,) = updates(run, "critic")
        trainable = experience.mask_BT.sum(dim=1).numpy()
        rows = np.array(rows_of(critic, experience))[critic.minibatches.order]
    wanted = trainable[rows].sum(axis=1).tolist()
    assert [update.minibatches.denominators.tolist() for update in everyone] == [wanted] * 3
    assert sum(wanted) == experience.mask_BT.sum() < experience.batch.lengths.sum() - 2 * SAMPLES
    # The fake loss is 1 per token: shares of all ranks add up to 1.
    assert np.sum([report.losses for report in learned.actor], axis=0) == pytest.approx([1.0, 1.0])


def test_numbers_travel_with_their_rows(tmp_path: Path) -> None:
    with small_run(tmp_path, TWO_ACTORS, KL_IN_LOSS) as run:
        experience, _ = learn(run)
        assert experience.reference_BT is not None
        for update in updates(run, "actor"):
            rows = rows_of(update, experience)
            assert (update.batch.mask == experience.batch.mask[rows]).all()
            assert (update.batch.lengths == experience.batch.lengths[rows]).all()
            assert (update.old_logprobs == experience.logprobs_BT.numpy()[rows]).all()
            assert (update.reference_logprobs == experience.reference_BT.numpy()[rows]).all()
            assert not update.advantages[~update.batch.mask].any()
        (update,) = updates(run, "critic")
        rows = rows_of(update, experience)
        assert (update.old_values == experience.values_BT.numpy()[rows]).all()
        # Without discounting a return is near the score, which tells the prompt; values are near 0.
        last = update.returns[np.arange(SAMPLES), update.batch.lengths - 1]
        assert last == pytest.approx(experience.scores_B.numpy()[rows], abs=0.1)


def test_advantages_are_whitened_over_the_step_and_returns_are_not(tmp_path: Path) -> None:
    with small_run(tmp_path, TWO_ACTORS) as run:
        learn(run)
        mine = np.concatenate([update.advantages[update.batch.mask] for update in updates(run, "actor")])
        (critic,) = updates(run, "critic")
    assert mine.mean() == pytest.approx(0.0, abs=1e-5)
    assert mine.std() == pytest.approx(1.0, abs=0.05)
    assert critic.returns[critic.batch.mask].mean() > 1.0


def test_a_kl_in_the_reward_lowers_returns_and_stays_out_of_the_loss(tmp_path: Path) -> None:
    with small_run(tmp_path / "with", NO_WHITENING) as run:
        experience, learned = learn(run, beta=0.5)
        with_kl = returns_by_row(run, experience)
        (actor,) = updates(run, "actor")
        assert actor.reference_logprobs is None
        assert actor.kl_coefficient == 0.0
    with small_run(tmp_path / "none", NO_WHITENING) as run:
        experience, _ = learn(run, beta=0.0)
        without = returns_by_row(run, experience)
    assert learned.kl == pytest.approx(REFERENCE_GAP, abs=1e-6)
    lowered = (without - with_kl)[np.arange(SAMPLES), experience.batch.lengths - 1]
    # The last token bears its own KL only.
    assert lowered == pytest.approx(0.5 * REFERENCE_GAP, abs=1e-5)


def test_a_kl_in_the_loss_goes_to_the_actor_and_leaves_returns_alone(tmp_path: Path) -> None:
    with small_run(tmp_path / "with", KL_IN_LOSS) as run:
        experience, learned = learn(run, beta=0.5)
        with_kl = returns_by_row(run, experience)
        (actor,) = updates(run, "actor")
        assert actor.reference_logprobs is not None
        assert actor.kl_coefficient == 0.5
    with small_run(tmp_path / "none", KL_IN_LOSS) as run:
        experience, _ = learn(run, beta=0.0)
        assert (returns_by_row(run, experience) == with_kl).all()
    # It is measured all the same, for the metrics and the controller.
    assert learned.kl == pytest.approx(REFERENCE_GAP, abs=1e-6)


def test_the_measured_kl_is_a_mean_over_trainable_tokens(tmp_path: Path) -> None:
    """One reference rank of two is further away: its rows count by their tokens."""
    settings = ("roles.reference.ranks_per_node=2", "health.max_faulty_rewards=0.5")
    with small_run(tmp_path, *settings) as run:
        run.roles.reference[1].level -= 1.0
        run.roles.reward[0].failing = {3}
        experience, learned = learn(run)
    tokens = experience.mask_BT.sum(dim=1)
    share = float(tokens[SAMPLES // 2 :].sum() / tokens.sum())
    assert tokens[-2:].tolist() == [0, 0]
    assert learned.kl == pytest.approx(REFERENCE_GAP + share, abs=1e-5)


def test_the_minibatches_of_a_step_are_drawn_from_seed_and_step(tmp_path: Path) -> None:
    def order(folder: str, *overrides: str) -> list[list[int]]:
        with small_run(tmp_path / folder, *overrides) as run:
            experience, _ = learn(run)
            (critic,) = updates(run, "critic")
            rows: list[list[int]] = np.array(rows_of(critic, experience))[critic.minibatches.order].tolist()
            return rows

    assert order("a") == order("b")
    assert order("a2") != order("c", "seed=5")
