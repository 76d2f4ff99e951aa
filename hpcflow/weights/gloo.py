"""Weights over gloo: a process group of actor rank 0 and all vLLM workers, apart from any other.

Parameters travel in buckets: several are flattened into one buffer, whose size is measured on full
shapes. Each update starts with a header (version, number of buckets), so that a receiver never
loads an update it was not told of. Tensors on a GPU are staged through host memory.

This module never imports vLLM: the receiving engine is in `gloo_engine`.

Who waits for whom: `GlooLink` waits until all ranks have connected; each broadcast waits for the
other side; each wait ends after the link's timeout, or at once when the peer's socket closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from hpcflow.rpc.addresses import towards
from hpcflow.weights.base import (
    DTYPES,
    Manifest,
    ParameterSpec,
    SendReport,
    WeightSource,
    WeightTransferError,
)
from hpcflow.weights.store import join_store, open_store

BACKEND = "hpcflow_gloo"
MANIFEST_KEY = "manifest"


class GlooLink:
    """A gloo process group over its own store; rank 0 sends, all others receive."""

    def __init__(
        self, store: TCPStore, *, address: str, rank: int, world_size: int, timeout_s: float
    ) -> None:
        # Options are the only way to choose the interface; torch's stubs lack the class.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        self._store = store
        try:
            self._group: ProcessGroupGloo | None = ProcessGroupGloo(
                PrefixStore("weights", store), rank, world_size, options
            )
        except RuntimeError as error:
            raise WeightTransferError(
                f"rank {rank} of {world_size} did not meet its peers for weight transfer within"
                f" {timeout_s:g} s: {error}"
            ) from error

    def broadcast(self, tensor: torch.Tensor, *, what: str) -> None:
        """Send (rank 0) or fill (others) a contiguous host tensor; `what` names it in errors."""
        if self._group is None:
            raise WeightTransferError(f"the weight link is closed, cannot transfer {what}")
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        try:
            self._group.broadcast([tensor], options).wait()  # type: ignore[attr-defined]
        except RuntimeError as error:
            self.close()
            raise WeightTransferError(f"weight transfer broke off at {what}: {error}") from error

    def close(self) -> None:
        """Drop the sockets, so that peers that wait for us fail at once."""
        self._group = None


class GlooWeightSender:
    """Replays a `WeightSource` on every actor rank; rank 0 (`is_sender`) transmits it."""

    def __init__(self, *, source: WeightSource, is_sender: bool, bucket_bytes: int, timeout_s: float) -> None:
        self._source = source
        self._is_sender = is_sender
        self._manifest = Manifest(tuple(source.parameter_specs()), bucket_bytes)
        self._timeout_s = timeout_s
        self._address = ""
        self._store: TCPStore | None = None
        self._link: GlooLink | None = None

    def listen(self, address: str) -> int:
        """Bind the group's store on `address`; returns the port for the receivers (rank 0 only)."""
        assert self._is_sender, "only actor rank 0 listens"
        self._store, port = open_store(address, timeout_s=self._timeout_s)
        self._address = address
        self._store.set(MANIFEST_KEY, self._manifest.to_json())
        return port

    def open(self, world_size: int) -> None:
        """Wait for the receivers, `world_size - 1` processes (rank 0 only, after `listen`)."""
        assert self._store is not None, "listen() comes before open()"
        self._link = GlooLink(
            self._store,
            address=self._address,
            rank=0,
            world_size=world_size,
            timeout_s=self._timeout_s,
        )

    def send(self, version: int) -> SendReport:
        """Send all parameters as `version`; every actor rank calls it.

        When the link breaks, rank 0 still enters every gather, lest the other ranks wait for it.
        Raises WeightTransferError.
        """
        buckets = self._manifest.buckets()
        pairs = self._source.full_parameters()
        failure: WeightTransferError | None = None
        try:
            self._send_header(version, len(buckets))
        except WeightTransferError as error:
            failure = error
        for bucket in buckets:
            if failure is not None or not self._is_sender:
                for _ in bucket:
                    next(pairs)
                continue
            buffer = _fill(bucket, pairs)
            try:
                self._open_link().broadcast(buffer, what=_span(bucket))
            except WeightTransferError as error:
                failure = error
        # Past the last parameter the source leaves its last gather.
        assert next(pairs, None) is None, "the source yields more than its specs say"
        if failure is not None:
            raise failure
        size = sum(spec.nbytes for spec in self._manifest.parameters)
        return SendReport(version=version, bytes=size, buckets=len(buckets))

    def close(self) -> None:
        """Leave the group and drop its store."""
        if self._link is not None:
            self._link.close()
        self._link = None
        self._store = None

    def _open_link(self) -> GlooLink:
        if self._link is None:
            raise WeightTransferError("no receiver is connected: open() comes before send()")
        return self._link

    def _send_header(self, version: int, buckets: int) -> None:
        if self._is_sender:
            header = torch.tensor([version, buckets], dtype=torch.int64)
            self._open_link().broadcast(header, what=f"the header of version {version}")


class GlooReceiver:
    """One receiving process; knows nothing of what is done with the parameters."""

    def __init__(self, address: str, port: int, *, rank: int, world_size: int, timeout_s: float) -> None:
        store = join_store(address, port, timeout_s=timeout_s)
        # The sender's address is not ours where it is on another node.
        own = towards(address, port)
        self._link = GlooLink(store, address=own, rank=rank, world_size=world_size, timeout_s=timeout_s)
        self.manifest = Manifest.from_json(store.get(MANIFEST_KEY).decode())

    def receive(self, version: int, load: Callable[[ParameterSpec, torch.Tensor], None]) -> None:
        """Hand each parameter of update `version` to `load`, as a host tensor that it may keep.

        Raises WeightTransferError; the link is closed then, so that the sender fails too.
        """
        buckets = self.manifest.buckets()
        header = torch.zeros(2, dtype=torch.int64)
        self._link.broadcast(header, what=f"the header of version {version}")
        got, count = header.tolist()
        try:
            if (got, count) != (version, len(buckets)):
                raise WeightTransferError(
                    f"expected weights of version {version} in {len(buckets)} buckets,"
                    f" got version {got} in {count}"
                )
            for bucket in buckets:
                # A new buffer for each: the loader may keep views of it until a layer is whole.
                dtype = DTYPES[bucket[0].dtype]
                buffer = torch.empty(sum(spec.numel for spec in bucket), dtype=dtype)
                self._link.broadcast(buffer, what=_span(bucket))
                for spec, view in _views(bucket, buffer):
                    load(spec, view)
        except WeightTransferError:
            self._link.close()
            raise

    def close(self) -> None:
        """Leave the group."""
        self._link.close()


def _fill(bucket: Sequence[ParameterSpec], pairs: Iterator[tuple[str, torch.Tensor]]) -> torch.Tensor:
    """Flatten the next parameters of the stream into one host buffer."""
    buffer = torch.empty(sum(spec.numel for spec in bucket), dtype=DTYPES[bucket[0].dtype])
    for spec, view in _views(bucket, buffer):
        name, tensor = next(pairs)
        assert name == spec.name, f"the source yielded {name}, its specs say {spec.name}"
        assert tuple(tensor.shape) == spec.shape, f"{name} is {tuple(tensor.shape)}, not gathered"
        view.copy_(tensor)
    return buffer


def _views(
    bucket: Sequence[ParameterSpec], buffer: torch.Tensor
) -> Iterator[tuple[ParameterSpec, torch.Tensor]]:
    start = 0
    for spec in bucket:
        yield spec, buffer[start : start + spec.numel].view(spec.shape)
        start += spec.numel


def _span(bucket: Sequence[ParameterSpec]) -> str:
    return f"{bucket[0].name} .. {bucket[-1].name}"
