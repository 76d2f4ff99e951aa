"""A private Slurm cluster on one Linux host, for tests: real daemons, fake GPUs, one folder.

    tools/slurm_up [--root DIR] [--form small|big] [--json]
    tools/slurm_down [--root DIR] [--purge]

Has its own munge key and socket, its own random ports on loopback, and is reached by SLURM_CONF alone; so
clusters of several users stand beside each other and beside a site's own Slurm. Never touches services or
settings of the host, except for installing Debian packages where they are missing and root asks. The daemons
are started munged, slurmctld, slurmd, each waited for before the next; a failed start is taken down again.
Exit codes: 0, 2 for what the user must change, 4 where the cluster does not start or does not end.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pwd
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from slurm_daemons import Daemons, StartError
from slurm_layout import (
    FORMS,
    Facts,
    Layout,
    UserError,
    fault_of_root,
    gres_conf,
    nodes_with_daemon,
    slurm_conf,
)
from slurm_packages import ensure_programs, say
from slurm_stop import StillThereError, ask, purge, running, stop, wait_until

LOCK_LIMIT_S = 300.0
LOWEST_PORT = 10000
PORT_TRIES = 500
START_TRIES = 3

Ports = Callable[[int], list[int]]


def up(root: Path, *, form: str = "small", ports: Ports | None = None) -> Facts:
    """Bring a cluster up under `root`, or find it up; returns its facts.

    Raises UserError for a folder or machine that cannot hold one, StartError where a daemon fails.
    """
    layout = Layout(root.resolve())
    if fault := fault_of_root(layout.root):
        raise UserError(fault)
    ensure_programs()
    layout.root.mkdir(parents=True, exist_ok=True)
    with _locked(layout):
        if (known := _facts(layout)) and _complete(layout, known):
            if known.form != form:
                raise UserError(f"{layout.root}: the {known.form} form is up; tools/slurm_down it first")
            return known
        for attempt in range(1, START_TRIES + 1):
            stop(layout)
            try:
                return _start(layout, form, ports or free_ports)
            except BaseException as error:
                stop(layout)
                if not (isinstance(error, StartError) and error.clash) or attempt == START_TRIES:
                    raise
    raise AssertionError("the last attempt returns or raises")


def down(root: Path, *, purge_folder: bool = False) -> int:
    """Take the cluster under `root` down, whatever of it is up; returns how many processes were ended."""
    layout = Layout(root.resolve())
    if not layout.lock.is_file():
        # No cluster is being started here, but one may run on whose folder was removed.
        return stop(layout)
    with _locked(layout):
        ended = stop(layout)
        if purge_folder:
            purge(layout)
    return ended


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel hands out for connections."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    top = low if low > LOWEST_PORT + PORT_TRIES else 65536
    found: set[int] = set()
    for _ in range(PORT_TRIES):
        if len(found) == count:
            return sorted(found)
        port = LOWEST_PORT + secrets.randbelow(top - LOWEST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.add(port)
    raise StartError(f"no {count} free ports from {LOWEST_PORT} to {top}")


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    with layout.lock.open("w") as lock:

        def taken() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not wait_until(taken, LOCK_LIMIT_S):
            raise StartError(
                f"{layout.lock} has been held by another slurm_up or slurm_down for {LOCK_LIMIT_S:.0f} s"
            )
        yield


def _facts(layout: Layout) -> Facts | None:
    try:
        known = json.loads(layout.facts.read_text())
    except (OSError, ValueError):
        return None
    return Facts(**{**known, "node_ports": tuple(known["node_ports"])})


def _start(layout: Layout, form: str, ports: Ports) -> Facts:
    layout.clear()
    nodes = nodes_with_daemon(form)
    controller_port, *node_ports = ports(1 + len(nodes))
    facts = Facts(
        name=f"hpcflow-{secrets.token_hex(3)}",
        form=form,
        host=socket.gethostname().partition(".")[0],
        user=pwd.getpwuid(os.geteuid()).pw_name,
        controller_port=controller_port,
        node_ports=tuple(node_ports),
    )
    layout.facts.write_text(json.dumps(asdict(facts)) + "\n")
    layout.conf.write_text(slurm_conf(layout, facts))
    layout.conf.with_name("gres.conf").write_text(gres_conf(layout, facts))
    for node in nodes:
        _make_devices(layout.devices(node))
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(1024))
    daemons = Daemons(layout)
    # --force: munged refuses a socket below a folder that others cannot enter, as pytest's folders are.
    daemons.start(
        "munged", "munged", "--foreground", "--force", "--origin=127.0.0.1", f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}", f"--pid-file={layout.root}/run/munged.pid",
        f"--log-file={layout.logs}/munged.log", f"--seed-file={layout.root}/munge/seed",
    )  # fmt: skip
    daemons.wait("munged has no socket", layout.munge_socket.is_socket)
    daemons.start("slurmctld", "slurmctld", "-D", "-f", str(layout.conf))
    daemons.wait("slurmctld does not answer", lambda: _answers(layout))
    for node in nodes:
        daemons.start(f"slurmd.{node}", "slurmd", "-D", "-f", str(layout.conf), "-N", node)
    daemons.wait("not all nodes are idle", lambda: _idle(layout, facts))
    return facts


def _complete(layout: Layout, facts: Facts) -> bool:
    """Whether every daemon is there and the controller answers; nodes may be busy or drained."""
    alive = running(layout)
    expected = {"munged": 1, "slurmctld": 1, "slurmd": len(nodes_with_daemon(facts.form))}
    return all(alive[name] >= count for name, count in expected.items()) and _answers(layout)


def _answers(layout: Layout) -> bool:
    return "is UP" in (ask(layout, "scontrol", "ping") or "")


def _idle(layout: Layout, facts: Facts) -> bool:
    """Whether all nodes are idle; those of the big form are from the start."""
    answer = ask(layout, "sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
    states = (answer or "").split()
    return facts.form == "big" or states == ["idle"] * len(nodes_with_daemon(facts.form))


def _make_devices(paths: list[Path]) -> None:
    """Character devices without a driver behind them; where none may be made, links to one that is there."""
    for index, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, index))
        except PermissionError:
            path.symlink_to("/dev/null")
        else:
            path.chmod(0o666)


def main(arguments: Sequence[str] | None = None) -> int:
    """`up` or `down`; the wrappers give the first word."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if given.action == "up":
            facts = up(given.root, form=given.form)
            _show(Layout(given.root.resolve()), facts, as_json=given.json)
        else:
            ended = down(given.root, purge_folder=given.purge)
            say(f"ended {ended} processes of {given.root}" if ended else f"nothing runs in {given.root}")
    except UserError as error:
        say(str(error))
        return 2
    except (StartError, StillThereError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 4
    except KeyboardInterrupt:
        return 130
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(layout: Layout, facts: Facts, *, as_json: bool) -> None:
    if as_json:
        paths = {"root": str(layout.root), "slurm_conf": str(layout.conf), "logs": str(layout.logs)}
        print(json.dumps({**paths, **asdict(facts)}))
        return
    print(f"export SLURM_CONF={layout.conf}")
    say(f"cluster {facts.name} is up; logs in {layout.logs}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/slurm_cluster.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    root = Path(__file__).resolve().parents[1] / ".slurm"
    start = actions.add_parser("up", help="bring a cluster up, or find it up")
    start.add_argument(
        "--form", choices=FORMS, default="small", help="four nodes, or 1,024 nodes that run nothing"
    )
    start.add_argument("--json", action="store_true", help="print all facts as one line of JSON")
    end = actions.add_parser("down", help="end its jobs and daemons")
    end.add_argument("--purge", action="store_true", help="remove the folder, logs included")
    for action in (start, end):
        action.add_argument("--root", type=Path, default=root, help="folder of the cluster (default: .slurm)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
