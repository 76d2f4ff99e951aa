"""What each role serves: one Protocol per role, one request and one reply per method.

The only module of `roles` that the driver imports; it names numpy arrays, never tensors. A method marked
`@remote` can be called over RPC; its request and reply types are read from its annotations, and nothing
else is decoded from the wire. `CONTRACT_VERSION` is checked when a rank says hello.

Shapes: B rows of this rank, T tokens. Arrays of per-token values are (B, T), indexed by the token that
they are about, float32; see `hpcflow.algorithms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

CONTRACT_VERSION = 1

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

F = TypeVar("F", bound=Callable[..., object])


def remote(method: F) -> F:
    """Mark a Protocol method as callable over RPC."""
    method.__dict__["remote"] = True
    return method


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every request and reply."""


class Empty(Message, frozen=True):
    """Nothing to say."""


class TokenBatch(Message, frozen=True):
    """Right-padded rows: prompt ids, then response ids, then padding.

    `tokens` (B, T) int64; `lengths` (B,) int64: prompt and response; `mask` (B, T) bool: tokens that train.
    """

    tokens: Ints
    lengths: Ints
    mask: Bools


class Logprobs(Message, frozen=True):
    """`logprobs` (B, T) float32 under softmax(logits / temperature); 0 outside the mask."""

    logprobs: Floats


class Values(Message, frozen=True):
    """`values` (B, T) float32: value of the state before token t; 0 outside the mask."""

    values: Floats


class Minibatches(Message, frozen=True):
    """Which rows make which optimizer step.

    `order` (S, R) int64: for each of S optimizer steps the R rows of this rank.
    `denominators` (S,) float32: trainable tokens of the step over all ranks.
    """

    order: Ints
    denominators: Floats


class ActorUpdate(Message, frozen=True):
    """One training step of the policy; `kl_coefficient` applies when KL is placed in the loss."""

    batch: TokenBatch
    minibatches: Minibatches
    old_logprobs: Floats
    advantages: Floats
    reference_logprobs: Floats | None
    kl_coefficient: float


class CriticUpdate(Message, frozen=True):
    """One training step of the value model."""

    batch: TokenBatch
    minibatches: Minibatches
    old_values: Floats
    returns: Floats


class UpdateReport(Message, frozen=True):
    """What one rank did in an update: lists have one entry per optimizer step.

    `sums` are masked sums over this rank's rows and all optimizer steps; adding them over ranks and
    dividing by `sums["tokens"]` gives global means. `maxima` are reduced by max. `grad_norms` are global
    norms before clipping and equal on all ranks.
    """

    losses: list[float]
    grad_norms: list[float]
    learning_rates: list[float]
    skipped: list[bool]
    sums: dict[str, float]
    maxima: dict[str, float]


class SaveRequest(Message, frozen=True):
    """Save into `folder` (the checkpoint's folder, shared by all roles)."""

    folder: str


class WeightsOpen(Message, frozen=True):
    """Join the weight group at the sender's store; `rank` is the group's rank of this process's first worker.

    The sender is rank 0; a rollout rank takes as many ranks as its tensor-parallel size.
    """

    address: str
    port: int
    rank: int
    world_size: int


class WeightsPort(Message, frozen=True):
    """Where the sender's store listens."""

    address: str
    port: int


class WeightsVersion(Message, frozen=True):
    """The version of the weights: the number of training steps behind them."""

    version: int


class GenerateRequest(Message, frozen=True):
    """One sample per entry: `prompts[i]` are token ids, `seeds[i]` makes sample i reproducible.

    `temperature` 0 is greedy.
    """

    prompts: list[list[int]]
    seeds: list[int]
    temperature: float
    max_response_tokens: int


class Sample(Message, frozen=True):
    """A response: sampled ids (the stop token included), the engine's logprobs, why it ended.

    `finish` is the engine's word: `stop`, `length` or `abort`. `version` is that of the weights.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: str
    version: int


class Samples(Message, frozen=True):
    """Samples in the order of the request."""

    samples: list[Sample]


class ScoreRequest(Message, frozen=True):
    """Texts and data rows to score; `token_ids` are prompt and response for model rewards.

    `rows` are JSON texts of the data rows.
    """

    prompts: list[str]
    responses: list[str]
    rows: list[str]
    token_ids: list[list[int]]


class Scores(Message, frozen=True):
    """One score per request entry; None where scoring failed, with the reason in `faults`."""

    scores: list[float | None]
    faults: list[str]


class Actor(Protocol):
    """The trained policy."""

    @remote
    def logprobs(self, request: TokenBatch) -> Logprobs:
        """Log-probabilities under the current weights at the rollout's temperature."""

    @remote
    def update(self, request: ActorUpdate) -> UpdateReport:
        """All optimizer steps of one training step."""

    @remote
    def listen_weights(self, request: Empty) -> WeightsPort:
        """Rank 0 binds the weight group's store to a free port and returns at once."""

    @remote
    def open_weights(self, request: WeightsOpen) -> Empty:
        """Rank 0 joins the weight group, which the rollout ranks must be joining; others do nothing."""

    @remote
    def send_weights(self, request: WeightsVersion) -> Empty:
        """Send all weights to the rollout ranks, which must be receiving."""

    @remote
    def save(self, request: SaveRequest) -> Empty:
        """Write this rank's share of a checkpoint."""

    @remote
    def load(self, request: SaveRequest) -> Empty:
        """Read this rank's share of a checkpoint."""


class Critic(Protocol):
    """The value model."""

    @remote
    def values(self, request: TokenBatch) -> Values:
        """Values under the current weights."""

    @remote
    def update(self, request: CriticUpdate) -> UpdateReport:
        """All optimizer steps of one training step."""

    @remote
    def save(self, request: SaveRequest) -> Empty:
        """Write this rank's share of a checkpoint."""

    @remote
    def load(self, request: SaveRequest) -> Empty:
        """Read this rank's share of a checkpoint."""


class Reference(Protocol):
    """The frozen policy."""

    @remote
    def logprobs(self, request: TokenBatch) -> Logprobs:
        """Log-probabilities at the rollout's temperature."""


class Reward(Protocol):
    """Scores finished samples."""

    @remote
    def score(self, request: ScoreRequest) -> Scores:
        """Score each sample; a fault costs that sample only."""


class Rollout(Protocol):
    """Generates samples."""

    @remote
    def generate(self, request: GenerateRequest) -> Samples:
        """One sample per prompt entry."""

    @remote
    def open_weights(self, request: WeightsOpen) -> Empty:
        """Join the weight group."""

    @remote
    def receive_weights(self, request: WeightsVersion) -> Empty:
        """Take all weights from the actor, drop cached prefixes, stamp the version."""
