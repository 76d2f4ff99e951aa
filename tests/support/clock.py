"""A clock that moves only when somebody waits, and can let things happen at set times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class ManualClock:
    """Starts at `time`; `at(t, action)` runs `action` when a wait passes t."""

    time: float = 1_000_000.0
    _actions: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def at(self, after_s: float, action: Callable[[], object]) -> None:
        """Let `action` happen `after_s` seconds from now."""
        self._actions.append((self.time + after_s, action))

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.time

    def wait(self, seconds: float) -> None:
        """Pass the time, and do what falls into it."""
        self.time += seconds
        due = [action for when, action in self._actions if when <= self.time]
        self._actions = [entry for entry in self._actions if entry[0] > self.time]
        for action in due:
            action()
