"""Publish a file by rename, so that a reader sees the old content or the new, never a part.

Never used for append-only files (metrics), whose readers skip an unfinished last line.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; durable once this returns.

    Raises:
        OSError: the folder is missing or full; `path` is then unchanged.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, content: str) -> None:
    """Replace `path` by UTF-8 `content`."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401 - any JSON value
    """Replace `path` by pretty-printed JSON."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
