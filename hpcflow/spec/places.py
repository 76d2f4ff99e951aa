"""Where each key of a spec was written, so that any later refusal can name file and line.

No part of what a spec says: all `Places` are equal, and none is written to `spec.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """`where` is `file:line` or `--set`; `text` is the value as the user wrote it."""

    where: str
    text: str


@dataclass(frozen=True)
class Places:
    """Places by key; `root` is the place of the whole document."""

    root: str = field(default="", compare=False)
    by_key: dict[Key, Place] = field(default_factory=dict, compare=False)

    def describe(self, key: Key) -> str:
        """`file:line a.b.c`, with the line of the nearest key above where `key` was left out."""
        dotted = ".".join(str(part) for part in key)
        return f"{self.nearest(key)} {dotted}".strip()

    def nearest(self, key: Key) -> str:
        """Where `key`, or else the nearest key above it, was written."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.by_key:
                return self.by_key[key[:length]].where
        return self.root

    def text(self, key: Key) -> str:
        """The value of `key` as written, empty where it was left out."""
        return self.by_key[key].text if key in self.by_key else ""
