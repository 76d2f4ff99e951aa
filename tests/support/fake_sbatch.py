"""A stand-in for `sbatch` on PATH, for answers that a real cluster does not give, and a queue in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hpcflow.errors import ClusterError
from hpcflow.slurm.partitions import Partition


def a_tool(folder: Path, name: str, script: str) -> Path:
    """An executable bash script; it finds coreutils beside what the test puts on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The caller's environment with the tools of `folder` before all others."""
    return {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", **more}


@dataclass
class FakeQueue:
    """`answers` are what each look finds, in turn: job ids, or None for no answer; the last one stays."""

    answers: list[list[str] | None] = field(default_factory=lambda: [[]])
    looked_for: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def find_by_script(self, path: str) -> list[str]:
        """The next answer."""
        self.looked_for.append(path)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise ClusterError("squeue did not answer within 20 s")
        return answer

    def cancel(self, job_id: str) -> None:
        """Note it."""
        self.cancelled.append(job_id)

    def partitions(self) -> dict[str, Partition]:
        """One without nodes."""
        return {"main": Partition("main", True, True, 60, None, ())}
