"""Control messages between the processes of an attempt and their supervisor; the client.

Each request has one answer. The supervisor holds the answer back until there is something to say (a
rendezvous, all endpoints, the order to leave) or the time named in the request is over: so waiting
costs no polling, and a beat is one message per interval. A process never waits for another process
here, only for the supervisor. Safe to use from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from hpcflow.errors import JobFault, RpcError
from hpcflow.rpc.identity import SUPERVISOR, ProcessIdentity, RankEndpoint
from hpcflow.rpc.memory import MemoryMeter
from hpcflow.rpc.wire import Fault, Seal

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 20.0
LOST_AFTER_S = 60.0


class ControlMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all requests: who asks, and how long the answer may be held back."""

    role: str
    rank: int
    hold_s: float


class RendezvousOffer(ControlMessage, frozen=True, tag="rendezvous_offer"):
    """Rank 0 of a role holds its group's store at this address."""

    address: str
    port: int


class RendezvousWanted(ControlMessage, frozen=True, tag="rendezvous_wanted"):
    """Where is the store of my role? Held until it is offered."""


class InputsChecked(ControlMessage, frozen=True, tag="inputs_checked"):
    """The sender has checked all that it can without a model; held until every other process has, too."""


class Ready(ControlMessage, frozen=True, tag="ready"):
    """This rank serves its contract at `endpoint`."""

    host: str
    endpoint: str
    contract_version: int


class EndpointsWanted(ControlMessage, frozen=True, tag="endpoints_wanted"):
    """Where do the roles serve? Held until all their ranks, and those of essential commands, are ready."""

    contract_version: int


class FaultReport(ControlMessage, frozen=True, tag="fault"):
    """The sender is about to leave because of this fault, which is `at_role`'s, rank `at_rank`."""

    at_role: str
    at_rank: int
    cause: str
    message: str
    hint: str


class Exited(ControlMessage, frozen=True, tag="exited"):
    """A rank that the sender, a node agent, had started has ended: exit code, or minus a signal's number."""

    at_role: str
    at_rank: int
    status: int


class Signalled(ControlMessage, frozen=True, tag="signalled"):
    """The sender received a signal."""

    signum: int


class Beat(ControlMessage, frozen=True, tag="beat"):
    """The sender is alive; held until the next beat is due or the sender is to leave."""

    host: str
    resident_bytes: int


Request = (
    RendezvousOffer
    | RendezvousWanted
    | InputsChecked
    | Ready
    | EndpointsWanted
    | FaultReport
    | Exited
    | Signalled
    | Beat
)


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the supervisor says; `missing` names what was not there when the time was over."""

    released: bool = False
    address: str = ""
    port: int = 0
    endpoints: dict[str, list[RankEndpoint]] = {}
    missing: list[str] = []
    refused: str = ""


class ControlClient:
    """A process's line to its supervisor."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._seal = Seal(identity.token)
        self._released = threading.Event()

    def offer_rendezvous(self, address: str, port: int) -> None:
        """Tell the other ranks of this role where rank 0 holds the store."""
        self._ask(RendezvousOffer(*self._sender(), address=address, port=port))

    def await_rendezvous(self, timeout_s: float) -> tuple[str, int]:
        """Wait until rank 0 of this role has offered its store.

        Raises:
            RpcError: not offered in time, or the supervisor does not answer.
        """
        answer = self._ask(RendezvousWanted(*self._sender(timeout_s)))
        if not answer.port:
            raise self._start_timeout("no rendezvous", timeout_s, answer)
        return answer.address, answer.port

    def inputs_checked(self) -> None:
        """Say that this process has found no fault in what it can check without a model."""
        self._ask(InputsChecked(*self._sender()))

    def await_inputs_checked(self, timeout_s: float) -> bool:
        """Say so, and wait until all processes have; False where this one is to leave instead.

        Raises:
            RpcError: some did not in time (named), or the supervisor does not answer.
        """
        answer = self._ask(InputsChecked(*self._sender(timeout_s)))
        if answer.missing:
            raise self._start_timeout("not all inputs are checked", timeout_s, answer)
        return not answer.released

    def ready(self, endpoint: str, contract_version: int) -> None:
        """Say that this rank serves its contract at `endpoint`."""
        host = self._identity.host
        self._ask(Ready(*self._sender(), host=host, endpoint=endpoint, contract_version=contract_version))

    def await_endpoints(self, timeout_s: float, *, contract_version: int) -> dict[str, list[RankEndpoint]]:
        """Wait until all roles and essential commands are ready; returns where each role's ranks serve.

        Raises:
            RpcError: ranks are missing (named) or serve another version of the contract.
        """
        answer = self._ask(EndpointsWanted(*self._sender(timeout_s), contract_version=contract_version))
        if answer.refused:
            raise RpcError(answer.refused, cause="role_error", role=SUPERVISOR)
        if answer.missing or not answer.endpoints:
            raise self._start_timeout("not all ranks are ready", timeout_s, answer)
        return answer.endpoints

    def fault(
        self,
        cause: str,
        message: str,
        hint: str = "",
        *,
        role: str | None = None,
        rank: int | None = None,
    ) -> None:
        """Report why this process is about to exit with an error; never raises.

        `role` and `rank` name the process whose fault it is, where that is another one.
        """
        report = FaultReport(
            *self._sender(),
            at_role=self._identity.role if role is None else role,
            at_rank=self._identity.rank if rank is None else rank,
            cause=cause,
            message=message,
            hint=hint,
        )
        try:
            self._ask(report)
        except RpcError as error:  # nobody is left to be told; the log must do
            _log.error("cannot report %s (%s): %s", cause, message, error)

    def report(self, error: BaseException) -> None:
        """Report the exception that ends this process; a JobFault has a cause and may name a rank."""
        fault = Fault.of(error)
        if isinstance(error, JobFault):
            role = error.role or self._identity.role
            self.fault(fault.cause, fault.message, fault.hint, role=role, rank=error.rank)
        else:
            self.fault(fault.cause, fault.message, fault.hint)

    def exited(self, role: str, rank: int, status: int) -> None:
        """Tell that a rank has ended which this process had started; never raises.

        `status` is its exit code, or minus the number of a signal.
        """
        try:
            self._ask(Exited(*self._sender(), at_role=role, at_rank=rank, status=status))
        except RpcError as error:
            _log.error("cannot report the end of %s rank %d (%d): %s", role, rank, status, error)

    def signalled(self, signum: int) -> None:
        """Tell that this process received a signal; never raises."""
        try:
            self._ask(Signalled(*self._sender(), signum=signum))
        except RpcError as error:
            _log.error("cannot report signal %d: %s", signum, error)

    def released(self) -> bool:
        """Whether the supervisor has told this process to leave (learnt from heartbeats)."""
        return self._released.is_set()

    def start_heartbeat(self, interval_s: float, on_release: Callable[[], None]) -> None:
        """Send beats in a thread; call `on_release` there, once, when this process is to leave.

        A supervisor that has not answered for `LOST_AFTER_S` is gone: that releases the process
        too.
        """
        threading.Thread(
            target=self._beat, args=(interval_s, on_release), name="heartbeat", daemon=True
        ).start()

    def _beat(self, interval_s: float, on_release: Callable[[], None]) -> None:
        heard = time.monotonic()
        memory = MemoryMeter()
        while not self._released.is_set():
            beat = Beat(
                *self._sender(interval_s),
                host=self._identity.host,
                resident_bytes=memory.resident_bytes(),
            )
            try:
                if self._ask(beat).released:
                    self._released.set()
                heard = time.monotonic()
            except RpcError as error:
                _log.warning("%s", error)
                if time.monotonic() - heard > LOST_AFTER_S:
                    self._released.set()
        on_release()

    def _sender(self, hold_s: float = 0.0) -> tuple[str, int, float]:
        return self._identity.role, self._identity.rank, hold_s

    def _ask(self, message: ControlMessage) -> Answer:
        """Send one request and wait for its answer, on a socket of its own."""
        timeout_s = message.hold_s + ANSWER_TIMEOUT_S
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
            socket.connect(self._identity.control)
            socket.send_multipart(self._seal.close(message))
            opened = None
            if socket.poll(int(timeout_s * 1000)):
                opened = self._seal.open(socket.recv_multipart(copy=False))
        if opened is None:
            raise RpcError(
                f"the supervisor did not answer within {timeout_s:g} s",
                cause="supervisor_lost",
                role=SUPERVISOR,
                rank=0,
            )
        return msgspec.msgpack.decode(opened[0], type=Answer)

    def _start_timeout(self, problem: str, timeout_s: float, answer: Answer) -> RpcError:
        missing = ", ".join(answer.missing)
        return RpcError(
            f"{problem} after {timeout_s:g} s; missing: {missing}",
            cause="start_timeout",
            role=self._identity.role,
            rank=self._identity.rank,
        )
