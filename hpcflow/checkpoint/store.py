"""The checkpoints of a run: begin a folder, commit it, find the newest complete one, keep N.

Only the driver writes, one checkpoint at a time; roles write their files between `begin` and `commit`.
Readers trust nothing without a manifest.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcflow.checkpoint import manifest as manifests
from hpcflow.checkpoint.manifest import Manifest
from hpcflow.rundir import MANIFEST, RunDir

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A complete checkpoint."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class CheckpointStore:
    """Checkpoints below `run.checkpoints`; the newest `keep` complete ones stay."""

    run: RunDir
    keep: int

    def begin(self, step: int) -> Path:
        """An empty folder for the checkpoint after `step` steps.

        What an earlier attempt left there unfinished is removed: it was never valid.
        """
        folder = self.run.checkpoint(step)
        if folder.exists():
            assert self.complete(step) is None, f"checkpoint {step} is complete already"
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def commit(self, step: int, *, attempt: int, driver: dict[str, Any]) -> None:
        """Publish the manifest, then drop what is older than the newest `keep`."""
        folder = self.run.checkpoint(step)
        manifests.publish(folder, step=step, attempt=attempt, driver=driver)
        complete = [number for number in self.run.checkpoint_steps() if self.complete(number)]
        for number in complete[: -self.keep]:
            old = self.run.checkpoint(number)
            # Without it a checkpoint that is half removed is none.
            (old / MANIFEST).unlink()
            shutil.rmtree(old)

    def complete(self, step: int) -> Found | None:
        """The checkpoint of one step, if all of it is there."""
        folder = self.run.checkpoint(step)
        manifest = manifests.read(folder)
        if manifest is None:
            return None
        missing = manifests.missing_files(folder, manifest)
        if missing:
            log.warning("checkpoint %s is not used: %s is missing or cut short", folder, missing[0])
            return None
        return Found(folder, manifest)

    def latest(self) -> Found | None:
        """The newest complete checkpoint."""
        for step in reversed(self.run.checkpoint_steps()):
            found = self.complete(step)
            if found is not None:
                return found
        return None
