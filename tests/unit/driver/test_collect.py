"""From prompts to Experience: dealt over ranks and joined in order, with faults that cost one sample each."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcflow.driver.clock import StepClock
from hpcflow.driver.experience import Experience
from hpcflow.driver.prompts import Prompt
from hpcflow.errors import JobFault
from tests.support.small_run import SAMPLES, SmallRun, numbered_prompts, small_run

TWO_RANKS = tuple(f"roles.{role}.ranks_per_node=2" for role in ("reference", "reward", "rollout"))
TWO_TRAINED = (
    "roles.actor.ranks_per_node=2",
    "roles.critic.ranks_per_node=2",
    "roles.critic.microbatch_per_gpu=2",
)


def collect(run: SmallRun, prompts: list[Prompt] | None = None, *, step: int = 1) -> Experience:
    return run.trainer.collector.collect(step, prompts or numbered_prompts(4), StepClock())


def lengths(experience: Experience) -> list[int]:
    """Sampled tokens per row; a prompt has two."""
    return [int(length) - 2 for length in experience.batch.lengths]


def test_two_ranks_of_every_role_give_the_experience_of_one(tmp_path: Path) -> None:
    with small_run(tmp_path / "one") as run:
        one = collect(run)
    with small_run(tmp_path / "two", *TWO_RANKS, *TWO_TRAINED) as run:
        two = collect(run)
        for name in ("rollout.generate", "reward.score", "actor.logprobs", "critic.values"):
            assert len(run.log.requests(name)[0]) == 2, name
    assert two.batch.tokens.tolist() == one.batch.tokens.tolist()
    assert two.batch.mask.tolist() == one.batch.mask.tolist()
    for name in ("scores_B", "rollout_logprobs_BT", "logprobs_BT", "reference_BT", "values_BT"):
        torch.testing.assert_close(vars(two)[name], vars(one)[name], rtol=0, atol=0, msg=name)


def test_rows_keep_the_order_of_prompts_with_the_samples_of_one_beside_each_other(tmp_path: Path) -> None:
    with small_run(tmp_path, *TWO_RANKS) as run:
        experience = collect(run)
        assert [request.prompts for request in run.log.requests("rollout.generate")[0]] == [
            [[3, 40], [3, 40], [4, 40], [4, 40]],
            [[5, 40], [5, 40], [6, 40], [6, 40]],
        ]
    numbers = np.repeat(np.arange(4), 2)
    assert (experience.batch.tokens[:, :2] == [[3 + n, 40] for n in numbers]).all()
    # The fake engine repeats the prompt's first token, the fake reward scores number and length.
    assert experience.batch.tokens[:, 2].tolist() == [3 + n for n in numbers]
    scores = [n + length / 100 for n, length in zip(numbers, lengths(experience), strict=True)]
    assert experience.scores_B.tolist() == pytest.approx(scores)
    assert len(set(lengths(experience))) > 2


def test_numbers_of_a_token_sit_on_that_token(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        experience = collect(run)
    tokens = torch.from_numpy(experience.batch.tokens) / 1000
    mask = experience.mask_BT
    assert mask.sum(dim=1).tolist() == lengths(experience)
    assert not mask[:, :2].any()
    assert experience.reference_BT is not None
    levels = {experience.logprobs_BT: -1.0, experience.reference_BT: -1.25, experience.values_BT: 0.0}
    for numbers, level in levels.items():
        torch.testing.assert_close(numbers, torch.where(mask, level + tokens, 0.0))
    assert set(experience.rollout_logprobs_BT[mask].tolist()) == {-1.0}
    assert not experience.rollout_logprobs_BT[~mask].any()


def test_the_reward_sees_text_row_and_exact_ids_of_each_sample(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        experience = collect(run)
        ((request,),) = run.log.requests("reward.score")
    assert request.prompts == [f"prompt {n}" for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert request.rows == [f'{{"number": {n}}}' for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    rows = zip(experience.batch.tokens, experience.batch.lengths, strict=True)
    assert request.token_ids == [tokens[:length].tolist() for tokens, length in rows]
    assert [len(text) for text in request.responses] == lengths(experience)


def test_one_prompt_twice_in_a_step_is_sampled_with_seeds_of_its_own(tmp_path: Path) -> None:
    with small_run(tmp_path, prompts=numbered_prompts(3)) as run:
        collect(run, run.trainer.stream.next(4))
        ((request,),) = run.log.requests("rollout.generate")
    assert len(request.prompts) == SAMPLES
    assert len({tuple(prompt) for prompt in request.prompts}) == 3
    assert len(set(request.seeds)) == SAMPLES


def test_seeds_are_those_of_run_step_and_place(tmp_path: Path) -> None:
    def seeds(folder: str, *overrides: str, step: int) -> list[int]:
        with small_run(tmp_path / folder, *overrides) as run:
            collect(run, step=step)
            return [seed for request in run.log.requests("rollout.generate")[0] for seed in request.seeds]

    first = seeds("a", step=1)
    assert seeds("b", *TWO_RANKS, step=1) == first
    assert not set(seeds("c", step=2)) & set(first)
    assert not set(seeds("d", "seed=1", step=1)) & set(first)


def test_samples_that_cannot_be_scored_up_to_the_limit_train_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two samples of eight: exactly the limit."""
    with small_run(tmp_path, "health.max_faulty_rewards=0.25", *TWO_RANKS) as run:
        run.roles.reward[1].failing = {2}
        with caplog.at_level(logging.WARNING):
            experience = collect(run)
    assert experience.mask_BT.any(dim=1).tolist() == [True] * 4 + [False] * 2 + [True] * 2
    assert experience.scores_B[4:6].tolist() == [0.0, 0.0]
    assert experience.scores_B[6:].min() >= 3.0
    assert "a sample was not scored: no opinion on 2" in caplog.text


def test_more_unscored_samples_than_the_limit_are_a_fault_of_the_reward(tmp_path: Path) -> None:
    with small_run(tmp_path, "health.max_faulty_rewards=0.24") as run:
        run.roles.reward[0].failing = {2}
        with pytest.raises(JobFault, match=r"2 of 8 samples .* limit of 24% .* no opinion on 2") as caught:
            collect(run)
    assert (caught.value.cause, caught.value.role) == ("reward_faults", "reward")


def test_a_run_goes_on_with_a_few_faulty_rewards_and_counts_them(tmp_path: Path) -> None:
    with small_run(tmp_path, "health.max_faulty_rewards=0.25", "data.shuffle=false") as run:
        run.roles.reward[0].failing = {0, 51}
        run.trainer.run()
        rows = run.rows("train")
        # Ten prompts in file order, four a step: number 0 is in steps 1 and 3.
        assert [row["faulty_samples"] for row in rows] == [2, 0, 2, 0]
        assert [row["samples"] for row in rows] == [6, 8, 6, 8]
        assert rows[0]["reward"] == pytest.approx(2, abs=0.09)
        assert [row["loss"] for row in rows] == pytest.approx([1.0] * 4)
        heldout = run.rows("heldout")
        assert [row["faulty_samples"] for row in heldout] == [1] * 3
        assert heldout[0]["score"] == pytest.approx(51, abs=0.09)


def test_faulty_rewards_above_the_limit_end_the_run_untrained(tmp_path: Path) -> None:
    with small_run(tmp_path, "data.shuffle=false") as run:
        run.roles.reward[0].failing = {0}
        with pytest.raises(JobFault, match=r"health\.max_faulty_rewards"):
            run.trainer.run()
        assert "actor.update" not in run.log.names
        assert run.folder.checkpoint_steps() == []


def test_only_responses_cut_by_length_pay_the_penalty(tmp_path: Path) -> None:
    with small_run(tmp_path / "without", "roles.rollout.max_response_tokens=4") as run:
        plain = collect(run)
    penalty = "algorithm.missing_stop_penalty=0.5"
    with small_run(tmp_path / "with", "roles.rollout.max_response_tokens=4", penalty) as run:
        shaped = collect(run)
    cut = torch.tensor([length == 4 for length in lengths(plain)])
    assert 0 < int(cut.sum()) < SAMPLES
    torch.testing.assert_close(plain.scores_B - shaped.scores_B, 0.5 * cut.float())
