"""Samples of one step: generated, scored, and joined with log-probabilities and values.

Rollout works alone; then reward, actor, reference and critic answer at the same time, each on its own
share of the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcflow.driver.clock import StepClock
from hpcflow.driver.experience import (
    Experience,
    joined,
    rollout_logprobs,
    token_batch,
    without_rows,
)
from hpcflow.driver.groups import Groups, deal, deal_rows
from hpcflow.driver.prompts import Prompt, sample_seed
from hpcflow.driver.rendering import Renderer
from hpcflow.errors import JobFault
from hpcflow.roles import contract
from hpcflow.roles.contract import (
    GenerateRequest,
    Logprobs,
    Sample,
    ScoreRequest,
    Scores,
    TokenBatch,
)
from hpcflow.rpc.group import Pending
from hpcflow.spec.run import RunSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scored:
    """Scores of samples; `scores[i]` is None where scoring failed."""

    scores: list[float | None]
    faults: list[str]

    @staticmethod
    def of(replies: Sequence[Scores]) -> Scored:
        """Put the answers of the reward ranks together."""
        return Scored(
            [score for reply in replies for score in reply.scores],
            [fault for reply in replies for fault in reply.faults],
        )


@dataclass(frozen=True)
class Collector:
    """Turns prompts into Experience."""

    spec: RunSpec
    groups: Groups
    renderer: Renderer

    def collect(self, step: int, prompts: Sequence[Prompt], clock: StepClock) -> Experience:
        """`samples_per_prompt` samples of each prompt; rows of one prompt are neighbours.

        Raises:
            JobFault: more than `health.max_faulty_rewards` of the samples could not be scored.
        """
        count = self.spec.algorithm.samples_per_prompt
        repeated = [prompt for prompt in prompts for _ in range(count)]
        # The index is the sample's within the step: a small file may give a step one prompt twice.
        seeds = [sample_seed(self.spec.seed, step, prompt.id, index) for index, prompt in enumerate(repeated)]
        temperature = self.spec.roles.rollout.temperature
        with clock.phase("generate"):
            samples = self.generate(repeated, seeds, temperature, clock)
        return self._judge(repeated, samples, clock)

    def generate(
        self,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        temperature: float,
        clock: StepClock,
    ) -> list[Sample]:
        """One sample per entry of `prompts`, in order, dealt over the rollout ranks."""
        group = self.groups.rollout
        requests = [
            GenerateRequest(
                prompts=[list(prompts[i].token_ids) for i in part],
                seeds=[seeds[i] for i in part],
                temperature=temperature,
                max_response_tokens=self.spec.roles.rollout.max_response_tokens,
            )
            for part in deal(range(len(prompts)), group.world_size)
        ]
        replies = clock.result(group.start(contract.Rollout.generate, requests))
        return [sample for reply in replies for sample in reply.samples]

    def start_score(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> Pending[Scores]:
        """Have the samples scored, dealt over the reward ranks in order."""
        group = self.groups.reward
        parts = deal(range(len(samples)), group.world_size)
        requests = [self._score_request(prompts, samples, part) for part in parts]
        return group.start(contract.Reward.score, requests)

    def _judge(self, prompts: Sequence[Prompt], samples: Sequence[Sample], clock: StepClock) -> Experience:
        batch = token_batch(prompts, samples)
        groups = self.groups
        with clock.phase("judge"):
            actor = groups.actor.start(contract.Actor.logprobs, deal_rows(batch, groups.actor.world_size))
            critic = groups.critic.start(contract.Critic.values, deal_rows(batch, groups.critic.world_size))
            reference = self._start_reference(batch)
            reward = self.start_score(prompts, samples)
            clock.wait(actor, critic, reward, *([] if reference is None else [reference]))
        old = joined([reply.logprobs for reply in actor.result()])
        values = joined([reply.values for reply in critic.result()])
        ref = None
        if reference is not None:
            ref = joined([reply.logprobs for reply in reference.result()])
        scored = Scored.of(reward.result())
        faulty = [row for row, score in enumerate(scored.scores) if score is None]
        self._check_faults(scored, faulty)
        experience = Experience(
            batch=without_rows(batch, faulty),
            scores_B=self._shaped_scores(scored, samples),
            rollout_logprobs_BT=rollout_logprobs(prompts, samples, batch.tokens.shape[1]),
            logprobs_BT=old,
            reference_BT=ref,
            values_BT=values,
        )
        experience.check()
        return experience

    def _start_reference(self, batch: TokenBatch) -> Pending[Logprobs] | None:
        group = self.groups.reference
        if group is None:
            return None
        rows = deal_rows(batch, group.world_size)
        return group.start(contract.Reference.logprobs, rows)

    def _shaped_scores(self, scored: Scored, samples: Sequence[Sample]) -> torch.Tensor:
        """Scores, less the penalty for responses that the engine cut by length; 0 for faulty rows."""
        penalty = self.spec.algorithm.missing_stop_penalty
        shaped = [
            0.0 if score is None else score - penalty * (sample.finish == "length")
            for score, sample in zip(scored.scores, samples, strict=True)
        ]
        return torch.tensor(shaped, dtype=torch.float32)

    def _check_faults(self, scored: Scored, faulty: Sequence[int]) -> None:
        for fault in scored.faults[:3]:
            log.warning("a sample was not scored: %s", fault)
        share = len(faulty) / len(scored.scores)
        limit = self.spec.health.max_faulty_rewards
        if share > limit:
            raise JobFault(
                f"{len(faulty)} of {len(scored.scores)} samples could not be scored, above the "
                f"limit of {limit:.0%} (health.max_faulty_rewards); the first: {scored.faults[0]}",
                cause="reward_faults",
                role="reward",
                hint="mend the reward function, or raise the limit if such samples are expected",
            )

    def _score_request(
        self, prompts: Sequence[Prompt], samples: Sequence[Sample], part: Sequence[int]
    ) -> ScoreRequest:
        return ScoreRequest(
            prompts=[prompts[i].text for i in part],
            responses=[self.renderer.text_of(samples[i].tokens) for i in part],
            rows=[prompts[i].row_json for i in part],
            token_ids=[[*prompts[i].token_ids, *samples[i].tokens] for i in part],
        )
