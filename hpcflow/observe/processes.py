"""Whether a process that a file names still runs: by pid and start time, so that a reused pid is not it.

Only answers for processes of this host; of another host it says "unknown". Never signals by name.
"""

from __future__ import annotations

import socket
from typing import Literal

import msgspec
import psutil

# Files give the start as the process itself saw it, psutil counts from the boot time: they differ a little.
START_TOLERANCE_S = 5.0

Liveness = Literal["alive", "gone", "unknown"]


class ProcessMark(msgspec.Struct, frozen=True):
    """A process, wherever it is; `started` in seconds since the epoch."""

    pid: int
    started: float
    host: str

    @staticmethod
    def of(pid: int) -> ProcessMark:
        """The mark of a process that runs on this host.

        Raises:
            psutil.NoSuchProcess: it has ended already.
        """
        return ProcessMark(pid, psutil.Process(pid).create_time(), socket.gethostname())

    def here(self) -> bool:
        """Whether the process belongs to this host."""
        return self.host == socket.gethostname()

    def process(self) -> psutil.Process | None:
        """The live process on this host; None once it has ended (a zombie has ended)."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > START_TOLERANCE_S:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (psutil.NoSuchProcess, ValueError):  # ValueError: a damaged file gave a number below 0
            return None

    def liveness(self) -> Liveness:
        """Alive or gone on this host, unknown on another."""
        if not self.here():
            return "unknown"
        return "gone" if self.process() is None else "alive"
