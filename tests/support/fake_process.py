"""Tiny role and driver programs over the real RPC: `fake_process.py BEHAVIOUR`.

They write their pid, and those of the processes that they start, into RUN/pids/.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpcflow import signals
from hpcflow.errors import EXIT_FAILED, EXIT_OK, EXIT_REQUEUE, JobFault
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.group import WorkerGroup
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rpc.server import Server

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.echo_contract import Echo, EchoServer, Seconds

CONTRACT = 1
LONG_S = 300.0


class Process:
    """What every fake needs."""

    def __init__(self) -> None:
        self.identity = ProcessIdentity.from_environ()
        self.control = ControlClient(self.identity)
        self.stop = threading.Event()
        self.note_pid(f"{self.identity.role}.{self.identity.rank}", os.getpid())

    def note_pid(self, name: str, pid: int) -> None:
        folder = self.identity.run_dir / "pids"
        folder.mkdir(exist_ok=True)
        part = folder / f".{name}.{os.getpid()}"
        part.write_text(str(pid))
        part.rename(folder / name)

    def live(self) -> None:
        """As a role: die with the supervisor, report signals, leave when released."""
        signals.die_with_parent(self.identity.parent)
        signals.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), self.control.signalled)
        self.control.start_heartbeat(1.0, self.stop.set)

    def start(self, name: str, *argv: str) -> None:
        """Start a process that cares for no signal, in a session of its own."""
        code = f"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({LONG_S})"
        command = argv or (sys.executable, "-S", "-c", code)
        child = subprocess.Popen(command, start_new_session=True)
        self.note_pid(f"{self.identity.role}.{self.identity.rank}.{name}", child.pid)

    def serve(self) -> int:
        with Server(self.identity.address, self.identity.token) as server:
            self.control.ready(server.endpoint, CONTRACT)
            server.serve(Echo, EchoServer(), stop=self.stop)
        return EXIT_OK

    def groups(self) -> list[WorkerGroup]:
        """As the driver: all groups, when all ranks are ready."""
        found = self.control.await_endpoints(60, contract_version=CONTRACT)
        token = self.identity.token
        return [WorkerGroup(role, at, token=token, timeout_s=30) for role, at in found.items()]


def serves() -> int:
    """A good role whose rank 0 shows the others the way, as process groups need it."""
    process = Process()
    process.live()
    if process.identity.rank == 0:
        process.control.offer_rendezvous("127.0.0.1", 4711)
    assert process.control.await_rendezvous(60) == ("127.0.0.1", 4711)
    return process.serve()


def exits_42() -> int:
    """Ready, then gone without a word."""
    process = Process()
    process.live()
    threading.Timer(0.5, lambda: os._exit(42)).start()
    return process.serve()


def leaves_cleanly() -> int:
    """Ready, then gone with exit code 0, which a role must not do by itself."""
    process = Process()
    process.live()
    threading.Timer(0.5, process.stop.set).start()
    return process.serve()


def wrong_contract() -> int:
    """Serves another version."""
    process = Process()
    process.live()
    process.control.ready("tcp://127.0.0.1:9", CONTRACT + 1)
    process.stop.wait(LONG_S)
    return EXIT_OK


def finds_fault() -> int:
    """Says why before it leaves, during the start."""
    process = Process()
    process.live()
    print("looking at the data", flush=True)
    process.control.report(
        JobFault("no chat template", cause="data", role=process.identity.role, rank=0, hint="add it")
    )
    return EXIT_FAILED


def crashes() -> int:
    """A traceback during the start, before anything is said."""
    Process()
    raise ValueError("cannot load the model")


def never_ready() -> int:
    """Hears nothing, wants nothing: no handshake, deaf to TERM, with a deaf child of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    process = Process()
    process.start("child")
    time.sleep(LONG_S)
    return EXIT_OK


def with_family() -> int:
    """A good role with a deaf child, and a grandchild whose own parent has left."""
    process = Process()
    process.live()
    process.start("child")
    pids = str(process.identity.run_dir / "pids")
    script = 'setsid sleep "$1" & echo $! > "$2/.orphan" && mv "$2/.orphan" "$2/orphan"'
    subprocess.run(["sh", "-c", script, "sh", str(LONG_S), pids], check=True)
    return process.serve()


def drives() -> int:
    """Calls forever; stops when asked, with the code of a saved checkpoint."""
    process = Process()
    signals.die_with_parent(process.identity.parent)
    asked = threading.Event()
    signals.on_signals((signal.SIGUSR2, signal.SIGTERM), lambda signum: asked.set())
    process.control.start_heartbeat(1.0, lambda: os._exit(EXIT_FAILED))
    try:
        groups = process.groups()
        process.note_pid("driving", os.getpid())
        while not asked.is_set():
            for group in groups:
                group.call(Echo.wait, Seconds(0.05))
    except JobFault as fault:
        process.control.report(fault)
        return EXIT_FAILED
    process.note_pid("saved", os.getpid())
    return EXIT_REQUEUE


def is_done() -> int:
    """One call, then all is done."""
    for group in Process().groups():
        group.call(Echo.wait, Seconds(0.01))
    return EXIT_OK


def drives_until() -> int:
    """Is done once RUN/done is there."""
    process = Process()
    groups = process.groups()
    process.note_pid("driving", os.getpid())
    while not (process.identity.run_dir / "done").exists():
        for group in groups:
            group.call(Echo.wait, Seconds(0.05))
    return EXIT_OK


def times_out() -> int:
    """A rank hangs in its first call."""
    process = Process()
    try:
        for group in process.groups():
            hang = [Seconds(LONG_S if peer.rank == 1 else 0.0) for peer in group.endpoints]
            group.call(Echo.wait, hang, timeout_s=0.5)
    except JobFault as fault:
        process.control.report(fault)
    return EXIT_FAILED


def cannot_stop() -> int:
    """Hears the request and never leaves."""
    process = Process()
    signals.on_signals((signal.SIGUSR2, signal.SIGTERM), lambda signum: None)
    process.groups()
    process.note_pid("driving", os.getpid())
    time.sleep(LONG_S)
    return EXIT_OK


BEHAVIOURS: dict[str, Callable[[], int]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        serves,
        exits_42,
        leaves_cleanly,
        wrong_contract,
        finds_fault,
        crashes,
        never_ready,
        with_family,
        drives,
        is_done,
        drives_until,
        times_out,
        cannot_stop,
    )
}

if __name__ == "__main__":
    sys.exit(BEHAVIOURS[sys.argv[1]]())
