"""What the driver is doing now: `state.json`, replaced by rename at most once a second.

One writer, the driver; readers see a whole state or none. A change that comes too early is kept and written
with the next one, or by `flush`; the reader judges freshness by `time`. Never a history: that is
`metrics.jsonl`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from hpcflow import atomic
from hpcflow.rundir import RunDir

WRITE_INTERVAL_S = 1.0


class DriverState(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's own account. Times are seconds since the epoch; held-out scores are in [0, 1] or None."""

    attempt: int
    step: int
    steps: int
    phase: str
    time: float
    started: float
    heldout_before: float | None = None
    heldout: float | None = None
    checkpoint_step: int | None = None


class StateChange(TypedDict, total=False):
    """Fields that `StateFile.update` may change."""

    step: int
    phase: str
    heldout_before: float | None
    heldout: float | None
    checkpoint_step: int | None


class StateFile:
    """The only writer of `state.json`."""

    def __init__(self, path: Path, first: DriverState, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._state = first
        self._written = clock()
        self._dirty = True
        self.flush()

    @property
    def state(self) -> DriverState:
        """The newest state, written or not."""
        return self._state

    def update(self, **change: Unpack[StateChange]) -> None:
        """Change fields; written now, or with a later change where the last write is under a second old."""
        self._state = msgspec.structs.replace(self._state, time=self._clock(), **change)
        self._dirty = True
        if not 0 <= self._state.time - self._written < WRITE_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write what was held back; call it before a long phase and at the end."""
        if self._dirty:
            atomic.write_json(self._path, msgspec.to_builtins(self._state))
            self._written = self._clock()
            self._dirty = False


def read_state(run: RunDir) -> DriverState | None:
    """The last state; None where there is none or it cannot be read (unknown, never good)."""
    try:
        return msgspec.json.decode(run.state_json.read_bytes(), type=DriverState)
    except (OSError, msgspec.DecodeError):
        return None
