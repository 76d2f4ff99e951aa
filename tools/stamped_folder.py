"""Folders that a tool makes once: filled aside, published by rename, left alone while their stamp matches.

Never looks into a folder's files beyond their sizes, and never merges: a folder is made whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STAMP = ".stamp.json"


def make(target: Path, key: str, write: Callable[[Path], None], *, say: Callable[[str], None]) -> None:
    """Fill `target` by `write` unless it is whole and was made under `key`."""
    if _is_whole(target, key):
        say(f"{target}: up to date")
        return
    say(f"{target}: making it")
    started = time.monotonic()
    with _replaced(target) as folder:
        write(folder)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        (folder / STAMP).write_text(json.dumps({"key": key, "sizes": sizes}), encoding="utf-8")
    say(f"{target}: done in {time.monotonic() - started:.0f} s")


def key_of(sources: list[Path], *parameters: str | int) -> str:
    """Hash of the parameters and of the code that uses them."""
    digest = hashlib.sha256(json.dumps(parameters).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_whole(target: Path, key: str) -> bool:
    try:
        stamp = json.loads((target / STAMP).read_text(encoding="utf-8"))
        return stamp["key"] == key and all(
            (target / name).stat().st_size == size for name, size in stamp["sizes"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `target` at the end, and is removed on any error."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, old = scratch / "fresh", scratch / "old"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
    finally:
        shutil.rmtree(scratch)
