"""Answers the control requests of an attempt's processes, and holds back what must wait.

Processes wait here for each other: ranks for rank 0's rendezvous and, before they load a model, for all
checks of inputs; the driver for all endpoints; each beat for the order to leave. A user's command checks no
inputs and serves no contract: the driver waits for an essential one, and is never told of any. Never touches
a socket: `send` gets the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcflow.job.verdict import THE_DRIVER, Member
from hpcflow.rpc.control import (
    Answer,
    Beat,
    EndpointsWanted,
    InputsChecked,
    Ready,
    RendezvousOffer,
    RendezvousWanted,
    Request,
)
from hpcflow.rpc.identity import RankEndpoint


@dataclass(frozen=True)
class _Waiter:
    peer: bytes
    request: Request
    until: float


class Desk:
    """What the processes have told of themselves, and who waits for what."""

    def __init__(
        self,
        roles: Sequence[Member],
        send: Callable[[bytes, Answer], None],
        hosts: Mapping[Member, str] | None = None,
        *,
        commands: Mapping[Member, bool] | None = None,
    ) -> None:
        """`hosts` is where ranks will be, as far as that is known before they say so.

        `commands` are ranks of commands, each with whether the driver is to wait for it.
        """
        self._commands = dict(commands or {})
        self.hosts: dict[Member, str] = dict(hosts or {})
        self.resident_bytes: dict[Member, int] = {}
        self.released = False
        self._send = send
        self._roles = tuple(roles)
        self._stores: dict[str, RendezvousOffer] = {}
        self._unchecked = {*roles, THE_DRIVER}
        self._measured = frozenset({*self._unchecked, *self._commands})
        self._awaited = (*roles, *(member for member, awaited in self._commands.items() if awaited))
        self._ready: dict[Member, Ready] = {}
        self._waiters: list[_Waiter] = []

    def receive(self, peer: bytes, request: Request, now: float) -> None:
        """Take note of a request; `serve` answers it, now or later."""
        member = Member(request.role, request.rank)
        match request:
            case RendezvousOffer():
                self._stores[request.role] = request
            case InputsChecked():
                self._unchecked.discard(member)
            case Ready():
                self._ready[member] = request
                self.hosts[member] = request.host
            case Beat():
                self.hosts[member] = request.host
                # Those of a node agent are its ranks', who tell them, too.
                if member in self._measured:
                    self.resident_bytes[member] = request.resident_bytes
        self._waiters.append(_Waiter(peer, request, now + request.hold_s))

    def forget(self, member: Member) -> None:
        """A rank is gone, and the run goes on without it."""
        self._ready.pop(member, None)

    def release(self, now: float) -> None:
        """From now on tell everybody to leave."""
        self.released = True
        self.serve(now)

    def serve(self, now: float) -> None:
        """Answer everybody who need not wait any longer."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            answer = self._answer(waiter.request)
            if answer is None and now >= waiter.until:
                answer = Answer(missing=self._missing(waiter.request))
            if answer is None:
                self._waiters.append(waiter)
            else:
                self._send(waiter.peer, answer)

    def endpoints(self) -> dict[str, list[RankEndpoint]]:
        """Where the ranks that are ready serve, by role, in the order of ranks."""
        found: dict[str, list[RankEndpoint]] = {}
        for member in sorted(self._ready):
            ready = self._ready[member]
            endpoint = RankEndpoint(member.rank, ready.host, ready.endpoint)
            found.setdefault(member.role, []).append(endpoint)
        return found

    def _answer(self, request: Request) -> Answer | None:
        """The answer, or None where the sender has to wait."""
        if self.released:
            return Answer(released=True)
        match request:
            case RendezvousWanted():
                store = self._stores.get(request.role)
                return Answer(address=store.address, port=store.port) if store else None
            case InputsChecked():
                return None if self._unchecked else Answer()
            case EndpointsWanted():
                return self._all_endpoints(request)
            case Beat():
                return None
        return Answer()

    def _all_endpoints(self, request: EndpointsWanted) -> Answer | None:
        for member, ready in self._ready.items():
            if member not in self._commands and ready.contract_version != request.contract_version:
                return Answer(
                    refused=f"{member} on {ready.host} serves contract {ready.contract_version}, "
                    f"the driver speaks {request.contract_version}: is hpcflow the same everywhere?"
                )
        if not self._ready.keys() >= {*self._awaited}:
            return None
        named = {member.role for member in self._roles}
        return Answer(endpoints={role: at for role, at in self.endpoints().items() if role in named})

    def _missing(self, request: Request) -> list[str]:
        match request:
            case RendezvousWanted():
                return [str(Member(request.role, 0))]
            case InputsChecked():
                return [str(member) for member in sorted(self._unchecked)]
            case EndpointsWanted():
                return [str(member) for member in self._awaited if member not in self._ready]
        return []
