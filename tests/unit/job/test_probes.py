"""What each probe takes for ready, and what it says where it is not."""

from __future__ import annotations

import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcflow.job.command_role import free_port
from hpcflow.job.probes import FileProbe, HttpProbe, PortProbe, Probing, probing_of
from hpcflow.spec.commands import PLACEHOLDERS, CommandRole, Probe

HERE = "127.0.0.1"


@contextmanager
def answering(status: int) -> Iterator[int]:
    """An HTTP server that answers every GET with this status; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep the output of tests clean."""

    with http.server.HTTPServer((HERE, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(10)


def test_a_port_counts_when_somebody_listens() -> None:
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        port = listener.getsockname()[1]
        probe = PortProbe(HERE, port)
        assert probe.problem(1.0) == f"port {port} of {HERE} does not answer (Connection refused)"
        listener.listen()
        assert probe.problem(1.0) == ""


@pytest.mark.parametrize(
    ("status", "ready"), [(200, True), (204, True), (299, True), (301, False), (404, False), (503, False)]
)
def test_an_http_path_counts_by_its_status(status: int, ready: bool) -> None:
    with answering(status) as port:
        said = HttpProbe(HERE, port, "/health").problem(1.0)
    expected = f"GET http://{HERE}:{port}/health is answered with status {status}"
    assert said == ("" if ready else expected)


def test_an_http_server_that_is_not_one_or_says_nothing_is_not_ready() -> None:
    port = free_port(HERE)
    assert "is not answered (Connection refused)" in HttpProbe(HERE, port, "/").problem(1.0)
    with socket.create_server((HERE, 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        assert "is not answered (timed out)" in HttpProbe(HERE, port, "/").problem(0.2)
        assert time.monotonic() - began < 5

        def talk() -> None:
            for _ in range(2):  # the first is the connection that was given up
                with silent.accept()[0] as peer:
                    peer.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        assert "is not answered (SSH-2.0-x" in HttpProbe(HERE, port, "/").problem(2.0)
        thread.join(10)


def test_a_file_counts_when_it_comes_or_changes(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    probe = FileProbe(HERE, 1, path)
    assert probe.problem(1.0) == f"file {path} is not there"
    path.write_text("")
    assert probe.problem(1.0) == ""
    again = FileProbe(HERE, 1, path)
    assert again.problem(1.0) == f"file {path} is the one from before the start"
    os.utime(path, ns=(0, 1))
    assert again.problem(1.0) == ""


def probing(folder: Path, probe: Probe | None) -> Probing:
    values: dict[str, object] = {name: 7 for name in PLACEHOLDERS} | {"address": HERE}
    return probing_of(CommandRole(command=["a"], folder=str(folder), ready=probe), values)


def test_each_kind_of_probe_knows_where_its_rank_is(tmp_path: Path) -> None:
    none, port, web, file = (
        probing(tmp_path, probe)
        for probe in (None, Probe(port=True), Probe(http="/up"), Probe(file="{rank}.{{}}"))
    )
    assert none.problem(1.0) == ""
    assert [found.endpoint for found in (none, port, file)] == [f"tcp://{HERE}:7"] * 3
    assert (web.endpoint, web.described) == (f"http://{HERE}:7", f"GET http://{HERE}:7/up")
    assert file.described == f"file {tmp_path}/7.{{}}"
    assert file.problem(1.0) == f"file {tmp_path}/7.{{}} is not there"
