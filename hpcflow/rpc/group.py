"""The driver's handle on all ranks of one role: call, gather, time out, name the rank that failed.

The driver waits for all ranks of a call, at most until the call's time-out; calls of several groups
may be under way at once (`start`) and are waited for together (`wait`), so that the first fault of
any is heard at once. Never retries: a call may have run. A reply that comes after its call was
given up is dropped. A group belongs to one thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from hpcflow.errors import RpcError
from hpcflow.rpc.identity import RankEndpoint
from hpcflow.rpc.wire import Call, RemoteMethod, Reply, Seal, pack, remote_method, unpack

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")

_log = logging.getLogger(__name__)


class Pending(Generic[R]):
    """A call under way on all ranks; `seconds` is the slowest rank's handler time so far."""

    def __init__(self, group: WorkerGroup, method: RemoteMethod, timeout_s: float) -> None:
        self.group = group
        self.deadline = time.monotonic() + timeout_s
        self.error: RpcError | None = None
        self.seconds = 0.0
        self._method = method
        self._timeout_s = timeout_s
        self._results: dict[int, R] = {}

    def result(self) -> list[R]:
        """Wait for the replies of all ranks, in the order of ranks.

        Raises:
            RpcError: see `wait`.
        """
        wait(self)
        return [self._results[peer.rank] for peer in self.group.endpoints]

    @property
    def missing(self) -> list[RankEndpoint]:
        """Ranks that have not answered."""
        return [peer for peer in self.group.endpoints if peer.rank not in self._results]

    def take(self, peer: RankEndpoint, reply: Reply, arrays: Sequence[memoryview]) -> None:
        """Keep one rank's result, or the first fault."""
        self.seconds = max(self.seconds, reply.seconds)
        if reply.fault is not None:
            self._fail(peer, reply.fault.message, cause=reply.fault.cause, hint=reply.fault.hint)
            return
        try:
            self._results[peer.rank] = unpack(reply.body, arrays, self._method.reply)
        except msgspec.MsgspecError as error:
            self._fail(peer, f"reply of the wrong type: {error}", cause="role_error", hint="")

    def expire(self) -> None:
        """Give the call up: it has not been answered in time."""
        first, *others = self.missing
        also = ", ".join(f"rank {peer.rank} on {peer.host}" for peer in others)
        self._fail(
            first,
            f"no answer within {self._timeout_s:g} s" + (f"; nor from {also}" if also else ""),
            cause="rpc_timeout",
            hint="its log shows what it was doing; communication.call_timeout_s limits one call",
        )

    def _fail(self, peer: RankEndpoint, problem: str, *, cause: str, hint: str) -> None:
        role = self.group.role
        error = RpcError(
            f"{role} rank {peer.rank} on {peer.host}: {self._method.name} failed: {problem}",
            cause=cause,
            role=role,
            rank=peer.rank,
            hint=hint,
        )
        self.error = self.error or error


def wait(*pendings: Pending[Any]) -> None:
    """Wait until all ranks of all these calls have answered; results are then at hand.

    Raises:
        RpcError: a rank failed (raised at once, without waiting for the others; the cause is the
            rank's), or
            did not answer in time, counted from the start of its call (cause `rpc_timeout`). All
            these calls are given up then.
    """
    poller = zmq.Poller()
    for group in {pending.group for pending in pendings}:
        group.register(poller)
    try:
        while open_calls := [pending for pending in pendings if pending.missing]:
            left_s = min(pending.deadline for pending in open_calls) - time.monotonic()
            for socket, _ in poller.poll(max(0, int(left_s * 1000) + 1)):
                for pending in pendings:
                    pending.group.receive(socket)
            for pending in open_calls:
                if pending.error is None and pending.missing and time.monotonic() > pending.deadline:
                    pending.expire()
            for pending in pendings:
                if pending.error is not None:
                    raise pending.error
    finally:
        for pending in pendings:
            pending.group.forget(pending)


class WorkerGroup:
    """All ranks of one role, which are 0, 1, ... in order; without ranks it answers with []."""

    def __init__(self, role: str, endpoints: Sequence[RankEndpoint], *, token: str, timeout_s: float) -> None:
        self.role = role
        self.endpoints = tuple(endpoints)
        assert [peer.rank for peer in endpoints] == list(range(len(endpoints)))
        self.resident_bytes: dict[int, int] = {}
        self._timeout_s = timeout_s
        self._seal = Seal(token)
        self._calls = itertools.count(1)
        self._pending: dict[int, Pending[Any]] = {}
        self._context = zmq.Context()
        self._peers: dict[zmq.Socket[bytes], RankEndpoint] = {}
        for peer in self.endpoints:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
            socket.connect(peer.endpoint)
            self._peers[socket] = peer

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.endpoints)

    def call(
        self,
        method: Callable[[Any, Q], R],
        requests: Q | Sequence[Q],
        *,
        timeout_s: float | None = None,
    ) -> list[R]:
        """Start a call and wait for its result; see `start` and `Pending.result`."""
        return self.start(method, requests, timeout_s=timeout_s).result()

    def start(
        self,
        method: Callable[[Any, Q], R],
        requests: Q | Sequence[Q],
        *,
        timeout_s: float | None = None,
    ) -> Pending[R]:
        """Send one request to all ranks, or a list with one request per rank; does not wait.

        `method` is a contract's function, as in `group.start(Actor.update, requests)`. Its result
        must be asked for: until then the group keeps the replies.
        """
        remote = remote_method(method)
        shared = isinstance(requests, msgspec.Struct)
        each = [requests] * self.world_size if isinstance(requests, msgspec.Struct) else requests
        assert len(each) == self.world_size
        for request in each:
            if not isinstance(request, remote.request):
                raise TypeError(f"{remote.name} takes {remote.request}, got {type(request)}")
        call = next(self._calls)
        pending: Pending[R] = Pending(self, remote, timeout_s or self._timeout_s)
        self._pending[call] = pending
        frames: list[Any] = []
        for socket, request in zip(self._peers, each, strict=True):
            if not (shared and frames):  # what goes to all is encoded and hashed once
                body, arrays = pack(request)
                frames = [*self._seal.close(Call(call, remote.name, body), arrays)]
            socket.send_multipart(frames)
        return pending

    def register(self, poller: zmq.Poller) -> None:
        """Have `poller` watch for replies."""
        for socket in self._peers:
            poller.register(socket, zmq.POLLIN)

    def receive(self, socket: zmq.Socket[bytes]) -> None:
        """Hand a reply that waits in `socket` to its call; a foreign socket is left alone."""
        peer = self._peers.get(socket)
        if peer is None or not socket.poll(0):
            return
        opened = self._seal.open(socket.recv_multipart(copy=False))
        if opened is None:
            _log.warning("dropped a reply that was not made with this run's token")
            return
        header, *arrays = opened
        reply = msgspec.msgpack.decode(header, type=Reply)
        self.resident_bytes[peer.rank] = reply.resident_bytes
        if reply.id in self._pending:
            self._pending[reply.id].take(peer, reply, arrays)
        else:
            _log.warning("dropped a late reply of %s rank %d", self.role, peer.rank)

    def forget(self, pending: Pending[Any]) -> None:
        """Drop what still arrives for this call."""
        self._pending = {call: kept for call, kept in self._pending.items() if kept is not pending}

    def close(self) -> None:
        """Close all sockets; replies under way are lost."""
        self._context.destroy(linger=0)
