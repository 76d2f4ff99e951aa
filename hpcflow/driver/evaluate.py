"""Scores on the held-out set: one sample per prompt at the evaluation's temperature, no training."""

from __future__ import annotations

from dataclasses import dataclass

from hpcflow.driver.clock import StepClock
from hpcflow.driver.collect import Collector, Scored
from hpcflow.driver.prompts import HeldOut, sample_seed
from hpcflow.spec.run import RunSpec

# Evaluation seeds are those of no training step, and the same at every evaluation.
EVALUATION_STEP = 0


@dataclass(frozen=True)
class HeldOutResult:
    """The mean score over scored prompts; None where none could be scored."""

    score: float | None
    prompts: int
    faulty: int


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the weights that the rollout ranks hold."""

    spec: RunSpec
    heldout: HeldOut
    collector: Collector

    def evaluate(self, clock: StepClock) -> HeldOutResult:
        """Generate and score the whole set."""
        prompts = self.heldout.prompts
        seeds = [sample_seed(self.spec.seed, EVALUATION_STEP, prompt.id, 0) for prompt in prompts]
        with clock.phase("evaluate"):
            samples = self.collector.generate(prompts, seeds, self.spec.evaluation.temperature, clock)
            reward = self.collector.start_score(prompts, samples)
            scored = Scored.of(clock.result(reward))
        valid = [score for score in scored.scores if score is not None]
        score = sum(valid) / len(valid) if valid else None
        return HeldOutResult(score, len(prompts), len(prompts) - len(valid))
