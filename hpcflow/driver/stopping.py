"""A request to stop: set by a signal, read by the loop between phases.

The handler only sets a flag; saving is the loop's business, outside of any handler.
"""

from __future__ import annotations

import threading

from hpcflow.errors import HpcflowError


class Stopped(HpcflowError):
    """The run was asked to stop, and has a checkpoint of everything that was trained."""


class StopRequest:
    """Whether somebody asked the driver to stop."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def request(self, signum: int) -> None:
        """Ask to stop, because of a signal."""
        self.reason = f"signal {signum}"
        self._event.set()

    def requested(self) -> bool:
        """True from the first request on."""
        return self._event.is_set()
