"""Run folders: their names, which are free, and which one a user means by RUN.

RUN is a run folder, the name of one in the folder of runs (`$HPCFLOW_RUNS`, else `./runs`), or a job id, also
as Slurm writes it of a part of the job (`123+1`, `123.batch`). Never guesses: what is unknown or ambiguous is
refused, with the candidates.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hpcflow.errors import RunDirError, UserError
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.rundir import RunDir

SHOWN_CANDIDATES = 8
_PART_OF_JOB = re.compile(r"([0-9]+)(?:\+[0-9]+)?(?:\.(?:batch|extern|interactive|[0-9]+))?")


def runs_root() -> Path:
    """The folder of runs."""
    return Path(os.environ["HPCFLOW_RUNS"] if os.environ.get("HPCFLOW_RUNS") else "runs")


def fresh_name(name: str, now: datetime) -> str:
    """`<slug of name>-<YYYYmmdd-HHMMSS>-<4 hex>`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60] or "run"
    return f"{slug}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, submitted or half-made."""
    run = RunDir(folder)
    return run.spec_json.is_file() or run.job_json.is_file()


def check_free(folder: Path) -> None:
    """Refuse a run folder that is taken or that the executor cannot use.

    Raises:
        RunDirError: it holds another run or other files, is no folder, or has an unusable name.
    """
    tags = [tag for tag in ("%j", "%t", "%A", "%a") if tag in str(folder)]
    if tags:
        raise RunDirError(
            f"run folder {folder}: {tags[0]} in a path would be replaced by a job id",
            hint="choose a path without it, by --run-dir",
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunDirError(f"run folder {folder} is a file", hint="choose another, by --run-dir")
    if is_run(folder):
        raise RunDirError(
            f"run folder {folder} holds another run",
            hint=f"go on with it by  hpcflow resume {folder}  or choose another folder",
        )
    if any(folder.iterdir()):
        raise RunDirError(f"run folder {folder} is not empty", hint="choose a new or empty folder")


def find(name: str) -> RunDir:
    """The run that RUN names.

    Raises:
        UserError: none or several fit; the hint lists the candidates.
    """
    here, below = Path(name), runs_root() / name
    places = {folder.resolve() for folder in (here, below) if name and is_run(folder)}
    found = sorted(places) or sorted(
        run.path for run in _all_runs() if (job := read_job(run)) and _is_of(name, job)
    )
    if len(found) == 1:
        return RunDir(found[0])
    if found:
        raise UserError(
            f"{name!r} fits {len(found)} runs",
            hint="name one by its folder:\n" + "\n".join(f"    {folder}" for folder in found),
        )
    if name and here.is_dir():
        raise RunDirError(f"{name!r} is no run folder: it has no spec.json", hint=_candidates(name))
    raise UserError(f"no run {name!r}", hint=_candidates(name))


def _is_of(name: str, job: JobRecord) -> bool:
    """Whether `name` is the job, or a component or step of it."""
    part = _PART_OF_JOB.fullmatch(name)
    return name == job.job_id or (part is not None and job.executor == "slurm" and part[1] == job.job_id)


def _all_runs() -> Iterator[RunDir]:
    """Runs in the folder of runs, newest first."""
    root = runs_root()
    if not root.is_dir():
        return
    folders = [folder.resolve() for folder in root.iterdir() if folder.is_dir() and is_run(folder)]
    for folder in sorted(folders, key=lambda folder: -folder.stat().st_mtime):
        yield RunDir(folder)


def _candidates(name: str) -> str:
    names = [run.name for run in _all_runs()]
    close = difflib.get_close_matches(name, names, n=SHOWN_CANDIDATES)
    shown = (close + [other for other in names if other not in close])[:SHOWN_CANDIDATES]
    if not shown:
        return f"there are no runs in {runs_root().resolve()} (set HPCFLOW_RUNS for another folder)"
    title = f"runs in {runs_root().resolve()}, likely or newest first:"
    return "\n".join([title, *(f"    {candidate}" for candidate in shown)])
