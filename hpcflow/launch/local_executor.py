"""submitit's LocalExecutor, set up for one run: the embedded default where there is no Slurm.

Runs as a process of its own, the launcher, which leads its own session: what it starts outlives the terminal,
is out of reach of its Ctrl-C and hang-up, and holds none of its pipes. The login command waits for the
launcher, at most `LAUNCH_TIMEOUT_S`; the launcher waits for nothing. A local run has no time limit.

    python -m hpcflow.launch.local_executor RUN_DIR ATTEMPT
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hpcflow.errors import ClusterError
from hpcflow.launch.entry import KEPT_DEVICES, become_supervisor
from hpcflow.observe.job import JobRecord, now_submitted, read_job, write_job
from hpcflow.observe.processes import ProcessMark
from hpcflow.rundir import RunDir

LAUNCH_TIMEOUT_S = 60.0
# submitit wants a limit and defaults to two minutes; a local run ends when it is done or is told to stop.
NO_LIMIT_MINUTES = 10 * 365 * 24 * 60


def launch(run: RunDir, attempt: int) -> JobRecord:
    """Start a detached supervisor for `attempt`, and return what `job.json` says.

    Raises:
        ClusterError: the job could not be started; the run folder is as before but for `submitit/`.
    """
    run.submitit.mkdir(exist_ok=True)
    log = run.submitit / "launcher.log"
    command = [sys.executable, "-m", __name__, str(run.path), str(attempt)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_launcher_environment(dict(os.environ)),
            start_new_session=True,
        )
    code = _wait(process)
    record = read_job(run)
    if code != 0 or record is None or record.attempt != attempt:
        how = "did not answer in time" if code is None else f"ended with exit code {code}"
        tail = log.read_text(errors="replace").strip()[-2000:]
        raise ClusterError(f"the local executor {how}", hint=tail or f"see {log}")
    return record


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Exit code of the launcher; None where it took too long and was ended, with all it had started."""
    try:
        return process.wait(LAUNCH_TIMEOUT_S)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LAUNCH_TIMEOUT_S)
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def submit(run: RunDir, attempt: int) -> None:
    """In the launcher: submit through submitit and publish `job.json`."""
    import submitit  # slow, and only the launcher needs it

    executor = submitit.LocalExecutor(folder=run.submitit)
    executor.update_parameters(timeout_min=NO_LIMIT_MINUTES)
    job = executor.submit(become_supervisor, str(run.path))
    try:
        _publish(run, attempt, job.job_id)
    except BaseException:
        # A job that nobody can find again must not run; the controller passes TERM on.
        os.kill(int(job.job_id), signal.SIGTERM)
        raise


def _publish(run: RunDir, attempt: int, job_id: str) -> None:
    record = JobRecord(
        executor="local",
        job_id=job_id,
        submitted=now_submitted(),
        attempt=attempt,
        controller=ProcessMark.of(int(job_id)),
    )
    write_job(run, record)


def _launcher_environment(environment: dict[str, str]) -> dict[str, str]:
    if "CUDA_VISIBLE_DEVICES" not in environment:
        return environment
    return {**environment, KEPT_DEVICES: environment["CUDA_VISIBLE_DEVICES"]}


if __name__ == "__main__":
    submit(RunDir(Path(sys.argv[1])), int(sys.argv[2]))
