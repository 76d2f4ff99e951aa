"""`python -m hpcflow.job.command_role NAME [PREFIX...]`: one rank of a command, the user's program its child.

Chooses the rank's port, starts the program (PREFIX are words before it, such as a container runtime), says
ready when the program's probe succeeds, and sends heartbeats for it. When released it ends the program; when
the program ends first it leaves with the same exit code or signal, so that the supervisor sees that end.
Reports signals as a role does and never passes them on; never restarts anything. Waits for rank 0 of its
command, which has chosen the port to meet at, then for its program and the supervisor's order to leave.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hpcflow import signals
from hpcflow.errors import EXIT_FAILED, EXIT_OK, FirstStepFault, JobFault
from hpcflow.job.probes import PROBE_TIMEOUT_S, Probing, probing_of
from hpcflow.job.processes import Children
from hpcflow.job.verdict import Member
from hpcflow.rpc.control import ControlClient
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.rundir import RunDir
from hpcflow.spec.commands import CommandRole, fill
from hpcflow.spec.load import load_resolved

log = logging.getLogger("hpcflow.command_role")

# From TERM to KILL; less than the supervisor gives to what it has released.
_LEAVE_S = 5.0
# A scheduler signals all processes of a step: reports of that must be on their way before a death is seen.
_SETTLE_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_TICK_S = 5.0

# Of a rank that serves no contract.
NO_CONTRACT = 0


class CommandRank:
    """One rank: `values` fill the placeholders of its command."""

    def __init__(
        self,
        own: ProcessIdentity,
        control: ControlClient,
        command: CommandRole,
        values: Mapping[str, object],
        *,
        start_timeout_s: float,
    ) -> None:
        self._member = Member(own.role, own.rank)
        self._own = own
        self._control = control
        self._command = command
        self._values = values
        self._within_s = command.ready_within_s(start_timeout_s)
        self._probing: Probing = probing_of(command, values)
        self._children = Children()
        self._released = threading.Event()
        self._wake_read, self._wake_write = os.pipe()

    def start(self, prefix: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the program; to be called before any thread runs, for what the child does before `exec`.

        Raises:
            FirstStepFault: the program or its folder is not there, or may not be used.
        """
        argv = [*prefix, *(fill(word, self._values) for word in self._command.command)]
        log_path = RunDir(self._own.run_dir).attempt(self._own.attempt).log(*self._member)
        try:
            self._children.start(
                self._member,
                argv,
                environ={**environ, **variables(self._values)},
                log=log_path,
                folder=Path(self._command.folder),
                die_with_us=True,
            )
        except OSError as error:
            raise FirstStepFault(
                f"command {self._own.role} cannot be started on {self._own.host}: {error.strerror}: "
                f"{error.filename}",
                cause="spec",
                role=self._own.role,
                rank=self._own.rank,
                hint=f"commands.{self._own.role}: a program is looked for in PATH, a path seen from folder",
            ) from error

    def run(self) -> int:
        """Until the program ends (its exit code, or minus a signal) or is to end (0).

        Raises:
            JobFault: it was not ready in time.
        """
        status = self._until_ready()
        while status is None and not self._released.is_set():
            status = self._wait(_TICK_S)
        if status is not None:
            self._released.wait(_SETTLE_S)
        return EXIT_OK if self._released.is_set() or status is None else status

    def release(self) -> None:
        """End the program and leave."""
        self._released.set()
        os.write(self._wake_write, b"x")

    def _until_ready(self) -> int | None:
        """Probe until the program is ready (None), or has ended (its status), or is to be released (None)."""
        deadline, pause_s = time.monotonic() + self._within_s, _FIRST_PAUSE_S
        while not self._released.is_set():
            problem = self._probing.problem(min(PROBE_TIMEOUT_S, self._within_s))
            if not problem:
                log.info("ready: %s", self._probing.described)
                self._control.ready(self._probing.endpoint, NO_CONTRACT)
                return None
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise JobFault(
                    f"command {self._member} was not ready within {self._within_s:g} s: {problem}",
                    cause="start_timeout",
                    role=self._own.role,
                    rank=self._own.rank,
                    hint=f"the limit is commands.{self._own.role}.ready_timeout_s, or a part of "
                    "health.start_timeout_s; the log shows what the command was doing",
                )
            status = self._wait(min(pause_s, left_s))
            if status is not None:
                return status
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _wait(self, timeout_s: float) -> int | None:
        """Wait for the program's end, a release or the time; the program's status if it has ended."""
        self._children.wait(timeout_s, self._wake_read)
        for _, status in self._children.reap():
            return status
        return None

    def end(self) -> None:
        """TERM to the program, KILL to it after a while, and at last to all that it started."""
        self._children.send(signal.SIGTERM)
        deadline = time.monotonic() + _LEAVE_S
        while self._children.running and (left_s := deadline - time.monotonic()) > 0:
            self._children.wait(left_s)
            for _, status in self._children.reap():
                log.info("the command ended: %d", status)
        self._children.sweep()


def variables(values: Mapping[str, object]) -> dict[str, str]:
    """What the program's environment says of its ports, and how its ranks meet where there are several."""
    found = {
        "HPCFLOW_PORT": str(values["port"]),
        "HPCFLOW_FIRST_ADDRESS": str(values["first_address"]),
        "HPCFLOW_FIRST_PORT": str(values["first_port"]),
    }
    if values["world_size"] != 1:
        names = {"RANK": "rank", "LOCAL_RANK": "local_rank", "WORLD_SIZE": "world_size"}
        names |= {"MASTER_ADDR": "first_address", "MASTER_PORT": "first_port"}
        found |= {variable: str(values[name]) for variable, name in names.items()}
    return found


def free_port(address: str) -> int:
    """A port that nobody listens on; the program has to take it soon."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _values(own: ProcessIdentity, control: ControlClient, timeout_s: float) -> dict[str, object]:
    """Values of all placeholders; the ranks learn from the supervisor where rank 0 is."""
    address, port = own.address, free_port(own.address)
    first = (address, port)
    if own.rank > 0:
        first = control.await_rendezvous(timeout_s)
    elif own.world_size > 1:
        control.offer_rendezvous(address, port)
    return {
        "address": address,
        "port": port,
        "rank": own.rank,
        "world_size": own.world_size,
        "local_rank": own.local_rank,
        "run_folder": str(own.run_dir),
        "python": sys.executable,
        "first_address": first[0],
        "first_port": first[1],
    }


def main(name: str, prefix: Sequence[str]) -> int:
    """Run one rank; returns the program's status. A fault is told to the supervisor before this returns."""
    own = ProcessIdentity.from_environ()
    signals.die_with_parent(own.parent)
    signals.adopt_orphans()
    control = ControlClient(own)
    # The supervisor hears of a fault first: the program may take its time to end.
    with ExitStack() as ending:
        try:
            spec = load_resolved(RunDir(own.run_dir).spec_json)
            command, start_s = spec.commands[name], spec.health.start_timeout_s
            values = _values(own, control, command.ready_within_s(start_s))
            rank = CommandRank(own, control, command, values, start_timeout_s=start_s)
            ending.callback(rank.end)
            rank.start(prefix, os.environ)
            signals.on_signals((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), control.signalled)
            control.start_heartbeat(spec.health.heartbeat_s, on_release=rank.release)
            return rank.run()
        except Exception as error:
            log.exception("this rank of the command cannot go on")
            control.report(error)
            return EXIT_FAILED


def leave(status: int) -> None:
    """End as the program did: by its exit code, or by its signal (without a core of our own)."""
    logging.shutdown()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):  # which are always at their default
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    leave(main(sys.argv[1], sys.argv[2:]))
