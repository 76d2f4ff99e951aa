"""Roles of a run as a few lines of numpy: every answer is a plain function of the request and of one weight.

A sample's length depends on its seed and on the version of the weights, its first token repeats the prompt's,
and a score tells both the prompt and the length, so that rows that were mixed up are seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcflow.roles.contract import (
    ActorUpdate,
    CriticUpdate,
    Empty,
    GenerateRequest,
    Logprobs,
    Minibatches,
    Sample,
    Samples,
    SaveRequest,
    ScoreRequest,
    Scores,
    TokenBatch,
    UpdateReport,
    Values,
    WeightsOpen,
    WeightsPort,
    WeightsVersion,
)

FIRST_LETTER, LETTERS = 3, 90
ROLLOUT_LOGPROB = -1.0
LEARNING_RATE = 0.01
REFERENCE_GAP = 0.25


@dataclass
class FakeTrained:
    """What actor and critic share: a weight that every optimizer step raises, unless it is skipped."""

    rank: int = 0
    weight: float = 0.0
    skipping: bool = False

    def save(self, request: SaveRequest) -> Empty:
        self._file(request).write_text(json.dumps(self.weight))
        return Empty()

    def load(self, request: SaveRequest) -> Empty:
        self.weight = json.loads(self._file(request).read_text())
        return Empty()

    def _file(self, request: SaveRequest) -> Path:
        return Path(request.folder) / f"{type(self).__name__}.{self.rank}.json"

    def _train(self, batch: TokenBatch, minibatches: Minibatches) -> UpdateReport:
        """The loss is 1 per token, so that the global loss is 1 where shares and denominators are right."""
        tokens_S = batch.mask[minibatches.order].sum(axis=(1, 2))
        count = len(tokens_S)
        self.weight += 0.0 if self.skipping else LEARNING_RATE * count
        tokens = float(tokens_S.sum())
        return UpdateReport(
            losses=(tokens_S / minibatches.denominators).tolist(),
            grad_norms=[0.5] * count,
            learning_rates=[LEARNING_RATE] * count,
            skipped=[self.skipping] * count,
            sums={"tokens": tokens, "policy_kl": 0.25 * tokens, "clipped": 0.5 * tokens},
            maxima={"ratio": 1.0 + self.rank},
        )


@dataclass
class FakeActor(FakeTrained):
    """A policy whose log-probabilities rise with its weight."""

    def logprobs(self, request: TokenBatch) -> Logprobs:
        return Logprobs(per_token(request, ROLLOUT_LOGPROB + self.weight))

    def update(self, request: ActorUpdate) -> UpdateReport:
        return self._train(request.batch, request.minibatches)

    def listen_weights(self, request: Empty) -> WeightsPort:
        return WeightsPort("127.0.0.1", 1000 + self.rank)

    def open_weights(self, request: WeightsOpen) -> Empty:
        return Empty()

    def send_weights(self, request: WeightsVersion) -> Empty:
        return Empty()


@dataclass
class FakeCritic(FakeTrained):
    """A value model."""

    def values(self, request: TokenBatch) -> Values:
        return Values(per_token(request, self.weight))

    def update(self, request: CriticUpdate) -> UpdateReport:
        return self._train(request.batch, request.minibatches)


@dataclass
class FakeReference:
    """The first policy, less the gap: the mean KL to it is the gap plus the actor's weight."""

    level: float = ROLLOUT_LOGPROB - REFERENCE_GAP

    def logprobs(self, request: TokenBatch) -> Logprobs:
        return Logprobs(per_token(request, self.level))


@dataclass
class FakeReward:
    """Scores the number in the data row plus a hundredth per letter; fails for the numbers in `failing`."""

    failing: set[int] = field(default_factory=set)

    def score(self, request: ScoreRequest) -> Scores:
        numbers = [json.loads(row)["number"] for row in request.rows]
        pairs = list(zip(numbers, request.responses, strict=True))
        return Scores(
            scores=[None if n in self.failing else n + len(text) / 100 for n, text in pairs],
            faults=[f"no opinion on {n}" for n, _ in pairs if n in self.failing],
        )


@dataclass
class FakeRollout:
    """An engine whose samples end by themselves, but for those of the greatest length."""

    version: int = 0

    def generate(self, request: GenerateRequest) -> Samples:
        longest = request.max_response_tokens
        pairs = zip(request.prompts, request.seeds, strict=True)
        return Samples([self._sample(prompt, seed, longest) for prompt, seed in pairs])

    def open_weights(self, request: WeightsOpen) -> Empty:
        return Empty()

    def receive_weights(self, request: WeightsVersion) -> Empty:
        self.version = request.version
        return Empty()

    def _sample(self, prompt: list[int], seed: int, longest: int) -> Sample:
        length = 1 + (seed + self.version) % longest
        rest = [FIRST_LETTER + (seed + place) % LETTERS for place in range(1, length)]
        finish = "length" if length == longest else "stop"
        return Sample([prompt[0], *rest], [ROLLOUT_LOGPROB] * length, finish, self.version)


def per_token(batch: TokenBatch, level: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """`level` plus a little that tells the token, 0 outside of the mask."""
    return np.where(batch.mask, level + batch.tokens / 1000, 0.0).astype(np.float32)
