"""The seam between actor and rollout for weights, in vLLM's words; no transport in here.

A `WeightSource` (the train engine) streams full parameters under their Hugging Face names. A
`WeightSender` on every actor rank replays that stream for each version, and rank 0 transmits it.
A `WeightReceiver` (the rollout engine) loads it and stamps its samples with the version. Weights
never pass through the driver, which only tells both sides to start.

Who waits for whom: all actor ranks gather in the same order; rank 0 and the receivers wait for one
another at `open` and at each bucket, never longer than the timeout given at `open`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import torch

from hpcflow.errors import EXIT_FAILED, HpcflowError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WeightTransferError(HpcflowError):
    """An update that did not arrive whole: the receiver's weights must not be used."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True)
class ParameterSpec:
    """Name, dtype and FULL shape of a parameter (a ZeRO-3 rank holds an empty tensor of it)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements of the full parameter."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the full parameter."""
        return self.numel * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """What an update holds, in the order in which it is sent."""

    parameters: tuple[ParameterSpec, ...]
    bucket_bytes: int

    def buckets(self) -> list[tuple[ParameterSpec, ...]]:
        """Group neighbours of one dtype, up to `bucket_bytes`; a larger parameter stands alone."""
        buckets: list[tuple[ParameterSpec, ...]] = []
        current: list[ParameterSpec] = []
        size = 0
        for spec in self.parameters:
            full = size + spec.nbytes > self.bucket_bytes
            if current and (full or spec.dtype != current[0].dtype):
                buckets.append(tuple(current))
                current, size = [], 0
            current.append(spec)
            size += spec.nbytes
        if current:
            buckets.append(tuple(current))
        return buckets

    def to_json(self) -> str:
        """The form in which it travels through the group's store."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        specs = (
            ParameterSpec(name=row["name"], dtype=row["dtype"], shape=tuple(row["shape"]))
            for row in fields["parameters"]
        )
        return cls(parameters=tuple(specs), bucket_bytes=fields["bucket_bytes"])


@dataclass(frozen=True)
class SendReport:
    """One update as sent: bytes of parameters, and the number of buckets they took."""

    version: int
    bytes: int
    buckets: int


class WeightSource(Protocol):
    """Full parameters under their Hugging Face names; every rank iterates in the same order."""

    def parameter_specs(self) -> Sequence[ParameterSpec]:
        """What `full_parameters` will yield; gathers nothing."""

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather one parameter at a time; a tensor is valid until the next one is asked for."""


class WeightSender(Protocol):
    """The actor's side, one on every rank."""

    def listen(self, address: str) -> int:
        """Rank 0 binds the group's store on `address`; returns its port for the receivers."""

    def open(self, world_size: int) -> None:
        """Meet the receivers: 1 + their number of processes is `world_size`."""

    def send(self, version: int) -> SendReport:
        """Send all parameters as `version`; every actor rank enters."""

    def close(self) -> None:
        """Leave the group; receivers that still wait fail at once."""


class WeightReceiver(Protocol):
    """The rollout's side; `weights_version` is the version that its samples carry."""

    weights_version: int

    def open_weights(
        self, address: str, port: int, *, first_rank: int, world_size: int, timeout_s: float
    ) -> None:
        """Meet the sender; our processes take the ranks from `first_rank` on."""

    def receive_weights(self, version: int) -> None:
        """Take one whole update, drop every cache made with older weights, and stamp it."""

    def close_weights(self) -> None:
        """Leave the group."""
