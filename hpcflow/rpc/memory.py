"""Resident memory of a process and its descendants."""

from __future__ import annotations

import time

import psutil

_FRESH_S = 1.0


class MemoryMeter:
    """Reads memory at most once a second: listing descendants reads a file per process."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._value = 0
        self._read_at = float("-inf")

    def resident_bytes(self) -> int:
        """Resident bytes of this process and its descendants; a shared page counts in each."""
        if time.monotonic() - self._read_at >= _FRESH_S:
            self._value = self._read()
            self._read_at = time.monotonic()
        return self._value

    def _read(self) -> int:
        total = 0
        for process in [self._own, *self._own.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:  # ended since it was listed: it holds nothing
                continue
        return total
