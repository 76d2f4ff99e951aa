"""`python -m hpcflow.launch.inside SPEC RUN_DIR [KEY=VALUE ...]`: run a spec in the job that this is in.

For batch scripts that a person wrote and submitted without `hpcflow submit`. Makes the run folder, or goes on
with it after a requeue, and becomes the supervisor. What the script asked Slurm for must fit the plan.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from hpcflow.errors import EXIT_USER, HpcflowError, UserError
from hpcflow.launch import machine, runs
from hpcflow.launch.submit import resolve
from hpcflow.observe.job import JobRecord, now_submitted, read_job, write_job
from hpcflow.rundir import RunDir
from hpcflow.slurm.env import Allocation
from hpcflow.spec.load import save


def main(arguments: list[str]) -> NoReturn:
    """Prepare the run, then replace this process by its supervisor."""
    if len(arguments) < 2:
        raise UserError(
            "usage: python -m hpcflow.launch.inside SPEC RUN_DIR [KEY=VALUE ...]",
            hint="called by a batch script, see sbatch/examples/",
        )
    spec, folder, *overrides = arguments
    run = RunDir(Path(os.path.abspath(folder)))
    allocation = Allocation.from_environ(os.environ)
    record = read_job(run)
    if record is None or record.job_id != allocation.job_id:
        # A requeued job without a record was interrupted here: what it made is its own.
        if record is not None or not allocation.restarts:
            runs.check_free(run.path)
        prepare(run, Path(spec), overrides, allocation.job_id)
    command = [sys.executable, "-m", "hpcflow.job", str(run.path), "slurm"]
    os.execv(sys.executable, command)


def prepare(run: RunDir, spec_path: Path, overrides: list[str], job_id: str) -> None:
    """Check the spec and fill the run folder of a job that runs already; `job.json` comes last.

    Raises:
        UserError: a fault of the spec or its files.
    """
    spec, plan = resolve(spec_path, overrides)
    machine.check_engines(plan)
    run.path.mkdir(parents=True, exist_ok=True)
    save(spec, run.spec_json)
    plan.save(run.plan_json)
    record = JobRecord(
        executor="slurm",
        job_id=job_id,
        submitted=now_submitted(),
        attempt=1,
        slurm_conf=os.environ.get("SLURM_CONF"),
    )
    write_job(run, record)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HpcflowError as error:
        sys.stderr.write(f"hpcflow: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:
        sys.stderr.write(f"hpcflow: {error.filename}: {error.strerror}\n")
        sys.exit(EXIT_USER)
