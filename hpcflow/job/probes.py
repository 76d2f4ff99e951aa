"""How a rank of a command shows that it is ready: a port that answers, an HTTP path, or a file.

Each look is short and has a time limit; how often to look is the caller's business. Never waits in between.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hpcflow.spec.commands import CommandRole, fill

# Of one look.
PROBE_TIMEOUT_S = 2.0


class Probing(Protocol):
    """One rank's probe; `endpoint` is where the rank is to be found, `described` what is looked for."""

    endpoint: str
    described: str

    def problem(self, timeout_s: float) -> str:
        """Why the rank is not ready; empty where it is."""


class NoProbe:
    """Ready as soon as it runs."""

    def __init__(self, address: str, port: int) -> None:
        self.endpoint = f"tcp://{address}:{port}"
        self.described = "it runs, and has no probe"

    def problem(self, timeout_s: float) -> str:
        """None."""
        return ""


class PortProbe:
    """Ready when somebody listens on the rank's port."""

    def __init__(self, address: str, port: int) -> None:
        self.endpoint = f"tcp://{address}:{port}"
        self.described = f"port {port} of {address}"
        self._at = (address, port)

    def problem(self, timeout_s: float) -> str:
        """What came of connecting."""
        try:
            socket.create_connection(self._at, timeout_s).close()
        except OSError as error:
            return f"{self.described} does not answer ({error.strerror or error})"
        return ""


class HttpProbe:
    """Ready when a GET is answered with a status of 200 to 299."""

    def __init__(self, address: str, port: int, path: str) -> None:
        self.endpoint = f"http://{address}:{port}"
        self.described = f"GET {self.endpoint}{path}"
        self._at = (address, port)
        self._path = path

    def problem(self, timeout_s: float) -> str:
        """What came of asking; redirections are not followed."""
        connection = http.client.HTTPConnection(*self._at, timeout=timeout_s)
        try:
            connection.request("GET", self._path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            said = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return f"{self.described} is not answered ({said or type(error).__name__})"
        finally:
            connection.close()
        return "" if 200 <= status < 300 else f"{self.described} is answered with status {status}"


class FileProbe:
    """Ready when a file is there that was not, or was another one, when the rank started."""

    def __init__(self, address: str, port: int, path: Path) -> None:
        self.endpoint = f"tcp://{address}:{port}"
        self.described = f"file {path}"
        self._path = path
        self._before = self._seen()

    def problem(self, timeout_s: float) -> str:
        """Whether it is there."""
        now = self._seen()
        if now is None:
            return f"{self.described} is not there"
        return f"{self.described} is the one from before the start" if now == self._before else ""

    def _seen(self) -> tuple[int, int, int] | None:
        """What tells one state of the file from another."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def probing_of(command: CommandRole, values: Mapping[str, object]) -> Probing:
    """The probe of one rank; to be made before its program starts."""
    address, port, probe = str(values["address"]), int(str(values["port"])), command.ready
    if probe is None:
        return NoProbe(address, port)
    if probe.http is not None:
        return HttpProbe(address, port, probe.http)
    if probe.file is not None:
        return FileProbe(address, port, Path(command.folder, fill(probe.file, values)))
    return PortProbe(address, port)
