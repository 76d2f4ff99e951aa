"""A small contract over real RPC: echo, add up, fail, wait."""

from __future__ import annotations

import threading
import time
from typing import Protocol

import numpy as np

from hpcflow.errors import JobFault
from hpcflow.roles.contract import Bools, Empty, Floats, Ints, Message, remote


class Arrays(Message, frozen=True):
    """Arrays of every kind that the contracts use."""

    floats: Floats
    ints: Ints
    bools: Bools
    maybe: Floats | None = None


class Seconds(Message, frozen=True):
    """How long to wait."""

    seconds: float


class Echo(Protocol):
    """What the test server serves."""

    @remote
    def echo(self, request: Arrays) -> Arrays:
        """The same arrays."""

    @remote
    def add_one(self, request: Arrays) -> Arrays:
        """Change the received arrays in place."""

    @remote
    def wait(self, request: Seconds) -> Seconds:
        """Answer after that time."""

    @remote
    def fail(self, request: Empty) -> Empty:
        """Raise an error of Python."""

    @remote
    def find_fault(self, request: Empty) -> Empty:
        """Raise a fault with a cause."""

    @remote
    def run_out(self, request: Empty) -> Empty:
        """Run out of memory."""

    @remote
    def lie(self, request: Empty) -> Seconds:
        """Return something of another type."""

    def local(self, request: Empty) -> Empty:
        """Not to be called from outside."""


class EchoServer:
    """Implements `Echo` and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stop = threading.Event()

    def echo(self, request: Arrays) -> Arrays:
        self.calls.append("echo")
        return request

    def add_one(self, request: Arrays) -> Arrays:
        request.floats[...] += 1
        return request

    def wait(self, request: Seconds) -> Seconds:
        self.calls.append("wait")
        time.sleep(request.seconds)
        return request

    def fail(self, request: Empty) -> Empty:
        raise ValueError("seven is not enough")

    def find_fault(self, request: Empty) -> Empty:
        raise JobFault("no chat template", cause="data", role="actor", hint="add one")

    def run_out(self, request: Empty) -> Empty:
        raise MemoryError("cannot take 3 GiB")

    def lie(self, request: Empty) -> Empty:
        return Empty()

    def local(self, request: Empty) -> Empty:
        self.calls.append("local")
        return request


def some_arrays(rows: int = 3, columns: int = 5) -> Arrays:
    """Arrays with distinct contents."""
    count = rows * columns
    return Arrays(
        floats=np.linspace(-1, 1, count, dtype=np.float32).reshape(rows, columns),
        ints=np.arange(count, dtype=np.int64).reshape(rows, columns) - 7,
        bools=(np.arange(count) % 3 == 0).reshape(rows, columns),
    )
