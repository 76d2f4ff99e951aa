"""The supervisor's side of the control socket: authenticated, typed requests in, answers out.

Knows nothing of what is asked; who waits for what is the supervisor's business.
"""

from __future__ import annotations

import logging

import msgspec
import zmq

from hpcflow.rpc.control import Answer, Request
from hpcflow.rpc.wire import Seal

_log = logging.getLogger(__name__)


class ControlServer:
    """A bound control socket; the port is chosen by the kernel and held from then on."""

    def __init__(self, address: str, token: str) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"tcp://{address}:*")
        self._seal = Seal(token)

    @property
    def endpoint(self) -> str:
        """Where processes connect: `tcp://ADDRESS:PORT`."""
        return self.socket.get_string(zmq.LAST_ENDPOINT)

    def receive(self) -> list[tuple[bytes, Request]]:
        """All requests that have arrived, each with the peer to answer; does not wait."""
        requests: list[tuple[bytes, Request]] = []
        while self.socket.poll(0):
            peer, *frames = self.socket.recv_multipart(copy=False)
            opened = self._seal.open(frames)
            if opened is None:
                _log.warning("dropped a control message that was not made with this run's token")
                continue
            try:
                requests.append((peer.bytes, msgspec.msgpack.decode(opened[0], type=Request)))
            except msgspec.MsgspecError as error:
                _log.warning("dropped a control message: %s", error)
        return requests

    def answer(self, peer: bytes, answer: Answer) -> None:
        """Answer a request; a peer that has left is ignored."""
        self.socket.send_multipart([peer, *self._seal.close(answer)])

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(linger=0)
