"""Ctrl-C as a count, TERM and hang-up as a wish to leave: read by loops, never raised in the middle of one.

While this is open the terminal's signals end nothing by themselves; whoever opens it must look at it.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Context in which `presses` counts Ctrl-C and `leave` says that only this command is to end."""

    def __init__(self) -> None:
        self.presses = 0
        self.leave = False
        self._before: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        for signum in _WATCHED:
            self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            self.presses += 1
        else:
            self.leave = True
