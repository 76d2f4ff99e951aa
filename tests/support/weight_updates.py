"""Weights that come from a dict of tensors instead of a trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hpcflow.weights.base import ParameterSpec, WeightTransferError
from hpcflow.weights.gloo import GlooWeightSender
from tests.support.distributed import ADDRESS


class ListSource:
    """A `WeightSource` over a plain list of named tensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def parameter_specs(self) -> list[ParameterSpec]:
        """Specs in the order of the list."""
        return [ParameterSpec(n, "float32", tuple(t.shape)) for n, t in self.tensors.items()]

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors themselves."""
        yield from self.tensors.items()


def tensor_sender(tensors: dict[str, torch.Tensor], *, timeout_s: float) -> GlooWeightSender:
    """A sender of `tensors` in buckets of 50 kB."""
    return GlooWeightSender(
        source=ListSource(tensors), is_sender=True, bucket_bytes=50_000, timeout_s=timeout_s
    )


def push_update(engine: Any, tensors: dict[str, torch.Tensor], *, version: int) -> None:
    """Send `tensors` to `engine` over a link of their own; the sender is a thread of this process.

    Raises what the engine raises; fails when the sender hangs.
    """
    sender = tensor_sender(tensors, timeout_s=20)
    port = sender.listen(ADDRESS)

    def send() -> None:
        sender.open(world_size=2)
        sender.send(version)

    thread = threading.Thread(target=error_of, args=(send,))
    thread.start()
    engine.open_weights(ADDRESS, port, first_rank=1, world_size=2, timeout_s=20)
    try:
        engine.receive_weights(version)
    finally:
        thread.join(30)
        assert not thread.is_alive(), "the sender hangs"
        sender.close()


def error_of(call: Callable[[], object]) -> str:
    """What the transfer error of this call says; "" where there is none."""
    try:
        call()
    except WeightTransferError as error:
        return str(error)
    return ""
