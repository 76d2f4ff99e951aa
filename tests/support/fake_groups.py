"""Worker groups without processes: each rank is an object of this process that serves its contract.

Requests and replies pass through the real encoding, and the driver waits with the real `wait` of
`hpcflow.rpc.group`; only sockets are missing. A `CallLog`, shared by all groups of a run, keeps what was
called beside what.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hpcflow.rpc.group import Pending, WorkerGroup
from hpcflow.rpc.identity import RankEndpoint
from hpcflow.rpc.wire import Fault, RemoteMethod, Reply, pack, remote_method, unpack

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")

RESIDENT_BYTES = 1000


@dataclass(frozen=True)
class Made:
    """One call, as `role.method`, with the request that each rank got."""

    name: str
    requests: list[Any]


@dataclass
class CallLog:
    """All calls in order, in waves: the calls of one were all started before any was waited for."""

    waves: list[list[Made]] = field(default_factory=list)
    under_way: list[Pending[Any]] = field(default_factory=list)
    _actions: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)

    def at(self, name: str, number: int, action: Callable[[], None]) -> None:
        """Run `action` in rank 0 while it serves call `number` (from 1) of this name.

        What it raises is a fault of that rank.
        """
        self._actions[name, number] = action

    @property
    def names(self) -> list[str]:
        """Names of all calls, in the order of their starts."""
        return [made.name for wave in self.waves for made in wave]

    @property
    def name_sets(self) -> list[set[str]]:
        """Per wave the names of its calls."""
        return [{made.name for made in wave} for wave in self.waves]

    def requests(self, name: str) -> list[list[Any]]:
        """Per call of this name the requests of its ranks."""
        return [made.requests for wave in self.waves for made in wave if made.name == name]

    def begin(self, made: Made, pending: Pending[Any]) -> None:
        """A call was started."""
        if not self.under_way:
            self.waves.append([])
        self.waves[-1].append(made)
        self.under_way.append(pending)

    def act(self, name: str) -> None:
        """Do what was planned for the newest call of this name."""
        action = self._actions.pop((name, self.names.count(name)), None)
        if action is not None:
            action()


class FakeGroup(WorkerGroup):
    """A group whose ranks are `ranks`; a call is served when it is started, and answered to whoever waits."""

    def __init__(self, role: str, ranks: Sequence[object], log: CallLog) -> None:
        super().__init__(role, [], token="", timeout_s=1.0)
        self.endpoints = tuple(RankEndpoint(rank, "here", "") for rank in range(len(ranks)))
        self._ranks = tuple(ranks)
        self._log = log

    def start(
        self,
        method: Callable[[Any, Q], R],
        requests: Q | Sequence[Q],
        *,
        timeout_s: float | None = None,
    ) -> Pending[R]:
        """Serve the call on all ranks, one after the other."""
        remote = remote_method(method)
        each = [requests] * self.world_size if isinstance(requests, msgspec.Struct) else requests
        assert len(each) == self.world_size, f"{self.role}.{remote.name}: {len(each)} requests"
        received = [_through_the_wire(request, remote.request) for request in each]
        # The deadline has passed at once: whoever waits for a rank that failed hears of it at once.
        pending: Pending[R] = Pending(self, remote, timeout_s=0.0)
        self._log.begin(Made(f"{self.role}.{remote.name}", received), pending)
        for peer, request in zip(self.endpoints, received, strict=True):
            self._serve(pending, peer, remote, request)
        return pending

    def forget(self, pending: Pending[Any]) -> None:
        """The call was waited for."""
        under_way = self._log.under_way
        under_way[:] = [kept for kept in under_way if kept is not pending]

    def _serve(
        self, pending: Pending[Any], peer: RankEndpoint, remote: RemoteMethod, request: object
    ) -> None:
        started = time.monotonic()
        resident_bytes = RESIDENT_BYTES + peer.rank
        self.resident_bytes[peer.rank] = resident_bytes
        try:
            if peer.rank == 0:
                self._log.act(f"{self.role}.{remote.name}")
            result = operator.methodcaller(remote.name, request)(self._ranks[peer.rank])
            body, arrays = pack(result)
        except Exception as error:  # as the server does: whatever it is, the caller hears of it
            seconds = time.monotonic() - started
            pending.take(peer, Reply(0, seconds, resident_bytes, fault=Fault.of(error)), [])
            return
        reply = Reply(0, time.monotonic() - started, resident_bytes, body)
        pending.take(peer, reply, [array.data for array in arrays])


def _through_the_wire(request: msgspec.Struct, wanted: type[Any]) -> Any:
    assert isinstance(request, wanted), f"{wanted} is wanted, not {type(request)}"
    body, arrays = pack(request)
    return unpack(body, [array.data for array in arrays], wanted)
