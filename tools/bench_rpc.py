"""Time one RPC call over loopback: hpcflow's carrier beside plain HTTP of the standard library.

    python tools/bench_rpc.py [--calls 300] [--mib 64] [--rounds 5]

A second process echoes. A small call carries 64 int64, a large one an array of `--mib` MiB, each way. HTTP
runs twice: without authentication, and with the same keyed MAC over each body. Medians of small
calls, the best of large ones. Times are those of this machine at this moment; compare ratios.
"""

from __future__ import annotations

import argparse
import hmac
import http.client
import multiprocessing
import secrets
import statistics
import sys
import threading
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np

from hpcflow.roles.contract import Ints, Message, remote
from hpcflow.rpc.group import WorkerGroup
from hpcflow.rpc.identity import RankEndpoint
from hpcflow.rpc.server import Server

ADDRESS = "127.0.0.1"
PEER_TIMEOUT_S = 60.0

Call = Callable[[Ints], Ints]
Serve = Callable[[Connection], None]
Connect = Callable[[str], Call]


class Payload(Message, frozen=True):
    """One array (N,) int64."""

    numbers: Ints


class Echo(Protocol):
    """What the second process serves."""

    @remote
    def echo(self, request: Payload) -> Payload:
        """The same array."""


class EchoRole:
    """Implements `Echo`."""

    def echo(self, request: Payload) -> Payload:
        """See the contract."""
        return request


def serve_rpc(token: str, line: Connection) -> None:
    """Serve `Echo` until the parent ends this process."""
    server = Server(ADDRESS, token)
    line.send(server.endpoint)
    server.serve(Echo, EchoRole(), stop=threading.Event())


def serve_http(key: bytes, line: Connection) -> None:
    """Echo bodies over HTTP/1.1 until the parent ends this process; an empty key means no MAC."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            """Check and echo one body."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not hmac.compare_digest(self.headers["X-Mac"], mac(key, body)):
                self.send_error(403)
                return
            self.send_response(200)
            self.send_header("X-Mac", mac(key, body))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((ADDRESS, 0), Handler)
    line.send(str(server.server_port))
    server.serve_forever()


def mac(key: bytes, body: bytes) -> str:
    """Keyed MAC of a body; `-` without a key."""
    return blake2b(body, key=key, digest_size=32).hexdigest() if key else "-"


def rpc_call(token: str, endpoint: str) -> Call:
    """A function that echoes over RPC."""
    group = WorkerGroup("echo", [RankEndpoint(0, "here", endpoint)], token=token, timeout_s=PEER_TIMEOUT_S)
    return lambda numbers: group.call(Echo.echo, Payload(numbers))[0].numbers


def http_call(key: bytes, port: str) -> Call:
    """A function that echoes over one kept-alive HTTP connection."""
    connection = http.client.HTTPConnection(ADDRESS, int(port), timeout=PEER_TIMEOUT_S)

    def call(numbers: Ints) -> Ints:
        body = numbers.tobytes()
        connection.request("POST", "/echo", body, {"X-Mac": mac(key, body)})
        reply = connection.getresponse()
        answer = reply.read()
        assert hmac.compare_digest(reply.headers["X-Mac"], mac(key, answer))
        return np.frombuffer(answer, dtype=np.int64)

    return call


@contextmanager
def echoing(serve: Serve) -> Iterator[str]:
    """A second process that echoes; gives the place where it listens."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    peer = spawn.Process(target=serve, args=(there,), daemon=True)
    peer.start()
    try:
        assert here.poll(PEER_TIMEOUT_S), "the second process did not start"
        yield here.recv()
    finally:
        peer.kill()
        peer.join(PEER_TIMEOUT_S)


def seconds_of(call: Call, numbers: Ints, times: int) -> list[float]:
    """Seconds of each of so many calls, in ascending order; the answer of one more is checked."""
    assert np.array_equal(call(numbers), numbers)
    return sorted(timeit.repeat(lambda: call(numbers), number=1, repeat=times))


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description="Time one RPC call over loopback.")
    parser.add_argument("--calls", type=int, default=300, help="small calls (default: 300)")
    parser.add_argument("--mib", type=int, default=64, help="size of the large array (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="large calls (default: 5)")
    options = parser.parse_args()
    small = np.arange(64, dtype=np.int64)
    large = np.arange(options.mib * 2**20 // 8, dtype=np.int64)
    token, key = secrets.token_hex(32), secrets.token_bytes(32)
    print(f"{'carrier':<34}{'small call':>14}{f'{options.mib} MiB each way':>20}")
    carriers: list[tuple[str, Serve, Connect]] = [
        ("ZeroMQ + msgspec, keyed MAC", partial(serve_rpc, token), partial(rpc_call, token)),
        ("HTTP, standard library, keyed MAC", partial(serve_http, key), partial(http_call, key)),
        ("HTTP, standard library, no MAC", partial(serve_http, b""), partial(http_call, b"")),
    ]
    for name, serve, connect in carriers:
        with echoing(serve) as place:
            call = connect(place)
            small_s = statistics.median(seconds_of(call, small, options.calls))
            large_s = seconds_of(call, large, options.rounds)[0]
        print(f"{name:<34}{small_s * 1e6:>11.0f} us{2 * large.nbytes / 1e6 / large_s:>15.0f} MB/s")
    mac_s = min(timeit.repeat(lambda: blake2b(large.data, key=key).digest(), number=1, repeat=options.rounds))
    print(f"{'the MAC alone, one pass':<48}{large.nbytes / 1e6 / mac_s:>15.0f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
