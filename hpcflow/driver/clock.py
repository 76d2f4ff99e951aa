"""Where the time of a step goes: per phase, and what the driver itself costs.

A phase is a set of calls that run at the same time. Its busy time is the handler time of the slowest rank;
what a step takes beyond the busy times of its phases is the driver's overhead (its own arithmetic,
serialization, transport, waiting for a slot).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hpcflow.rpc.group import Pending, wait

R = TypeVar("R")


class StepClock:
    """Times one step; `now` gives seconds and never goes back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started = now()
        self._wall: dict[str, float] = {}
        self._busy: dict[str, float] = {}
        self._phase = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as `name`."""
        assert not self._phase, f"phase {name} inside phase {self._phase}"
        self._phase = name
        started = self._now()
        try:
            yield
        finally:
            self._phase = ""
            self._wall[name] = self._wall.get(name, 0.0) + self._now() - started

    def wait(self, *pendings: Pending[Any]) -> None:
        """Wait for calls that make up the current phase; the first fault of any is raised at once."""
        assert self._phase, "a call outside of any phase"
        wait(*pendings)
        busy = max(pending.seconds for pending in pendings)
        self._busy[self._phase] = self._busy.get(self._phase, 0.0) + busy

    def result(self, pending: Pending[R]) -> list[R]:
        """Wait for one call that belongs to the current phase."""
        self.wait(pending)
        return pending.result()

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, `step` (all so far) and `driver` (overhead)."""
        step = self._now() - self._started
        driver = max(0.0, step - sum(self._busy.values()))
        return {**self._wall, "step": step, "driver": driver}
