"""Serves one contract of one rank: one call at a time, in the thread that calls `serve`.

The driver waits for the reply; this side waits for the next call and looks at `stop` between calls.
Never runs two calls at once (engines and collectives are not reentrant), and never answers a
message that was not made with this run's token: it is dropped and logged.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import zmq

from hpcflow.errors import JobFault
from hpcflow.rpc.memory import MemoryMeter
from hpcflow.rpc.wire import (
    Call,
    Fault,
    Frames,
    RemoteMethod,
    Reply,
    Seal,
    pack,
    remote_methods,
    unpack,
)

_log = logging.getLogger(__name__)
_POLL_MS = 100


class Server:
    """A bound socket; the port is chosen by the kernel and held from then on."""

    def __init__(self, address: str, token: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.bind(f"tcp://{address}:*")
        self._seal = Seal(token)
        self._memory = MemoryMeter()

    @property
    def endpoint(self) -> str:
        """Where callers connect: `tcp://ADDRESS:PORT`."""
        return self._socket.get_string(zmq.LAST_ENDPOINT)

    def serve(self, contract: type, implementation: object, *, stop: threading.Event) -> None:
        """Answer calls of the contract's `@remote` methods until `stop` is set.

        A call that is running then is finished. A handler's exception becomes the reply's fault;
        the server lives on, because whether to go on is the driver's decision.
        """
        methods = remote_methods(contract)
        while not stop.is_set():
            if self._socket.poll(_POLL_MS):
                self._answer(methods, implementation)

    def close(self) -> None:
        """Close the socket after at most a second for replies that are being sent."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self, methods: dict[str, RemoteMethod], implementation: object) -> None:
        peer, *frames = self._socket.recv_multipart(copy=False)
        opened = self._seal.open(frames)
        if opened is None:
            _log.warning("dropped a message that was not made with this run's token")
            return
        header, *arrays = opened
        try:
            call = msgspec.msgpack.decode(header, type=Call)
        except msgspec.MsgspecError as error:
            _log.warning("dropped a message that is no call: %s", error)
            return
        started = time.monotonic()
        outcome, payload = _handle(call, arrays, methods, implementation)
        seconds, resident = time.monotonic() - started, self._memory.resident_bytes()
        if isinstance(outcome, Fault):
            reply = Reply(call.id, seconds, resident, fault=outcome)
        else:
            reply = Reply(call.id, seconds, resident, body=outcome)
        self._socket.send_multipart([peer.bytes, *self._seal.close(reply, payload)])


def _handle(
    call: Call, arrays: Frames, methods: dict[str, RemoteMethod], implementation: object
) -> tuple[msgspec.Raw | Fault, Sequence[np.ndarray[Any, Any]]]:
    """Run one call; every exception becomes a fault."""
    try:
        if call.method not in methods:
            raise TypeError(f"no remote method {call.method!r}; served are {sorted(methods)}")
        method = methods[call.method]
        request = unpack(call.body, arrays, method.request)
        result = operator.methodcaller(call.method, request)(implementation)
        if not isinstance(result, method.reply):
            raise TypeError(f"{call.method} returned {type(result).__name__}")
        return pack(result)
    except Exception as error:
        # A JobFault says all there is to say; of anything else the log keeps the trace.
        _log.error("%s failed: %s", call.method, error, exc_info=not isinstance(error, JobFault))
        return Fault.of(error), ()
