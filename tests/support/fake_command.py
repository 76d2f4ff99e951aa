"""A user's program, as a command of a run starts it: `fake_command.py RUN_FOLDER BEHAVIOUR [ARGUMENT...]`.

Knows nothing of hpcflow but its environment. Writes its pid into RUN_FOLDER/pids/, as the fake roles do.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

LONG_S = 300.0
NAME = f"{os.environ['HPCFLOW_ROLE']}.{os.environ['HPCFLOW_RANK']}.program"


def note(folder: Path, name: str, text: str) -> None:
    """Publish a small file."""
    folder.mkdir(exist_ok=True)
    part = folder / f".{name}.{os.getpid()}"
    part.write_text(text)
    part.rename(folder / name)


def listen() -> socket.socket:
    """Take the port that the environment names."""
    return socket.create_server((os.environ["HPCFLOW_ADDRESS"], int(os.environ["HPCFLOW_PORT"])))


def listens(run: Path, *codes: str) -> None:
    """Serves by its port alone; given a code, it leaves its child with that code once RUN/leave is there."""
    if codes:
        child = subprocess.Popen(["sleep", str(LONG_S)], start_new_session=True)
        note(run / "pids", f"{NAME}.child", str(child.pid))
    with listen():
        while not (codes and (run / "leave").exists()):
            time.sleep(0.02)
    sys.exit(int(codes[0]))


def warms_up(run: Path, *arguments: str) -> None:
    """Listens at once, and answers GETs of /health by 503 until RUN/warm is there."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            note(run, "asked", self.path)
            self.send_response(200 if (run / "warm").exists() else 503)
            self.end_headers()

    address = (os.environ["HPCFLOW_ADDRESS"], int(os.environ["HPCFLOW_PORT"]))
    http.server.HTTPServer(address, Handler).serve_forever()


def writes(run: Path, *paths: str) -> None:
    """Writes the files that are named, as another run would have left them, then lives on."""
    for path in paths:
        note(Path(path).parent, Path(path).name, "ready")
    time.sleep(LONG_S)


def tells(run: Path, *arguments: str) -> None:
    """Writes what it was told and where it is, then lives on."""
    name = f"told.{os.environ['HPCFLOW_ROLE']}.{os.environ['HPCFLOW_RANK']}"
    note(run, name, json.dumps([arguments, dict(os.environ), os.getcwd()]))
    time.sleep(LONG_S)


def is_deaf(run: Path, *arguments: str) -> None:
    """Cares for no TERM, nor do its children, of which one has left its parent."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep = ["sleep", str(LONG_S)]
    child = subprocess.Popen(sleep, start_new_session=True)
    note(run / "pids", f"{NAME}.child", str(child.pid))
    script = 'setsid sleep "$1" & echo $! > "$2/.orphan" && mv "$2/.orphan" "$2/orphan"'
    subprocess.run(["sh", "-c", script, "sh", str(LONG_S), str(run / "pids")], check=True)
    with listen():
        time.sleep(LONG_S)


def obeys(run: Path, *arguments: str) -> None:
    """Says that it was asked to leave, and leaves with a code of its own."""

    def leave(signum: int, frame: object) -> None:
        note(run, "left", str(signum))
        sys.exit(7)

    signal.signal(signal.SIGTERM, leave)
    with listen():
        time.sleep(LONG_S)


if __name__ == "__main__":
    run = Path(sys.argv[1])
    note(run / "pids", NAME, str(os.getpid()))
    behaviours = (listens, warms_up, writes, tells, is_deaf, obeys)
    {behaviour.__name__: behaviour for behaviour in behaviours}[sys.argv[2]](run, *sys.argv[3:])
