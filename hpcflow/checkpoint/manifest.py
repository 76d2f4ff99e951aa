"""The manifest of a checkpoint: published last; without it the checkpoint does not exist.

Lists every file with its size and checksum, and holds the driver's state, so that one rename commits all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hpcflow import atomic
from hpcflow.rundir import MANIFEST

FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: path below its folder, bytes, blake2b of the content."""

    path: str
    size: int
    blake2b: str


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint is made of. `driver` is the driver's own state (JSON)."""

    format: int
    step: int
    attempt: int
    driver: dict[str, Any]
    files: tuple[FileEntry, ...]


def publish(folder: Path, *, step: int, attempt: int, driver: dict[str, Any]) -> Manifest:
    """Commit what lies in `folder`; durable, with all its files, once this returns."""
    files = tuple(_entry(folder, path) for path in _files(folder))
    for below in (path for path in folder.rglob("*") if path.is_dir()):
        atomic.sync_folder(below)
    manifest = Manifest(FORMAT, step, attempt, driver, files)
    atomic.write_json(folder / MANIFEST, msgspec.to_builtins(manifest))
    atomic.sync_folder(folder.parent)
    return manifest


def read(folder: Path) -> Manifest | None:
    """The manifest, or None where the checkpoint is not complete or of a newer format."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return manifest if manifest.format == FORMAT else None


def missing_files(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are not there or have another size; empty for a sound checkpoint."""
    return [entry.path for entry in manifest.files if _size(folder / entry.path) != entry.size]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)


def _entry(folder: Path, path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        os.fsync(file.fileno())  # its writer, an engine, leaves that to the kernel
    return FileEntry(str(path.relative_to(folder)), path.stat().st_size, digest.hexdigest())
