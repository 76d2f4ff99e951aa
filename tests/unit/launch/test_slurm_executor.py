"""One submission makes one job or none, whatever sbatch answers."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcflow import atomic
from hpcflow.errors import ClusterError
from hpcflow.launch.slurm_executor import LOOKS_AFTER_S, Launch, Launched
from hpcflow.observe.job import read_job
from hpcflow.rundir import RunDir
from tests.support.clock import ManualClock
from tests.support.fake_sbatch import FakeQueue, a_tool, environment
from tests.support.run_folder import WEIRD_NAME

Submit = Callable[..., Launched]
LOST = (
    "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = tmp_path / WEIRD_NAME
    folder.mkdir()
    return RunDir(folder)


@pytest.fixture
def submit(run: RunDir, tmp_path: Path) -> Submit:
    """Submits with a fake sbatch that notes its argument, its environment and how often it was called."""

    def go(sbatch: str, queue: FakeQueue | None = None, *, limit_s: float = 20.0, **more: str) -> Launched:
        tools = tmp_path / "tools"
        a_tool(tools, "srun", "")
        notes = "\n".join(
            (
                f"echo \"$@\" >>'{tmp_path}/calls'",
                f"env -0 >'{tmp_path}/environment'",
                f"cp \"$2\" '{tmp_path}/script'",
            )
        )
        a_tool(tools, "sbatch", f"{notes}\n{sbatch}")
        launch = Launch(
            run,
            2,
            lambda withdrawn: f"#!/bin/bash\n# {withdrawn}\n",
            environment(tools, **more),
            client=queue or FakeQueue(),
            clock=ManualClock(),
            limit_s=limit_s,
        )
        return launch()

    return go


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def marks(run: RunDir) -> list[Path]:
    return list(run.submitit.glob("withdrawn_*"))


def test_a_job_is_submitted_once_and_recorded(submit: Submit, run: RunDir, tmp_path: Path) -> None:
    queue = FakeQueue()
    launched = submit("echo 4711", queue, SLURM_CONF="/etc/other.conf")
    assert launched.note == ""
    assert read_job(run) == launched.record
    written = json.loads(run.job_json.read_text())
    assert (written["executor"], written["job_id"], written["attempt"]) == ("slurm", "4711", 2)
    assert (written["controller"], written["slurm_conf"]) == (None, "/etc/other.conf")
    (call,) = calls(tmp_path)
    assert call.startswith(f"--parsable {run.submitit}/")
    assert (queue.looked_for, queue.cancelled, marks(run)) == ([], [], [])


def test_sbatch_gets_the_given_environment_and_this_process_keeps_its_own(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "kept")
    before = dict(os.environ)
    value = "a,b 'c' \"d\"\n$HOME \u00fc\u4e2d"
    submit("echo 1", ODD=value)
    assert f"ODD={value}\0" in (tmp_path / "environment").read_text()
    assert dict(os.environ) == before


def test_what_sbatch_itself_does_not_take_is_a_refusal(submit: Submit) -> None:
    """Its exit code is then 255, which is no signal."""
    queue = FakeQueue()
    with pytest.raises(ClusterError, match="refused the job:\nsbatch: unrecognized option '--oops'"):
        submit("echo \"sbatch: unrecognized option '--oops'\" >&2; exit 255", queue)
    assert queue.looked_for == []


@pytest.mark.parametrize(
    ("what", "key"),
    [
        ("Invalid qos specification", "slurm.qos"),
        ("Invalid account or account/partition combination specified", "slurm.account"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "slurm.qos",
        ),
    ],
)
def test_a_refusal_is_shown_word_by_word_and_no_job_is_looked_for(
    submit: Submit, run: RunDir, what: str, key: str
) -> None:
    queue = FakeQueue()
    refusal = f"sbatch: error: Batch job submission failed: {what}"
    with pytest.raises(ClusterError) as caught:
        submit(f"echo {shlex.quote(refusal)} >&2; exit 1", queue)
    assert caught.value.exit_code == 4
    assert caught.value.message == f"Slurm refused the job:\n{refusal}"
    assert key in caught.value.hint
    assert (queue.looked_for, run.job_json.exists()) == ([], False)


UNCLEAR = {
    "timed out": (LOST, "Socket timed out"),
    "unknown text": ("echo 'quota daemon says no' >&2; exit 1", "quota daemon says no"),
    "silent": ("exit 1", "exit code 1 and wrote nothing"),
    "ended": ("exit 143", "ended by signal 15"),
    "killed": ("kill -KILL $$", "ended by signal 9"),
    "no id": ("echo Welcome to the cluster", "no job id in what sbatch wrote: 'Welcome to the cluster'"),
    "two ids": ("echo 7; echo 8", "no job id"),
    "too slow": ("sleep 30", "sbatch did not answer within 0.3 s"),
}


@pytest.mark.parametrize("answer", UNCLEAR)
def test_after_an_unclear_answer_the_job_that_is_there_is_taken_over(
    submit: Submit, run: RunDir, tmp_path: Path, answer: str
) -> None:
    script, said = UNCLEAR[answer]
    queue = FakeQueue([[], None, ["99"]])
    launched = submit(script, queue, limit_s=0.3 if answer == "too slow" else 20.0)
    assert launched.record.job_id == "99"
    assert said in launched.note
    assert "job 99 is there" in launched.note
    assert len(calls(tmp_path)) == 1
    (asked,) = set(queue.looked_for)
    assert calls(tmp_path) == [f"--parsable {asked}"]
    assert marks(run) == []


@pytest.mark.parametrize("answer", UNCLEAR)
def test_after_an_unclear_answer_without_a_job_nothing_is_submitted_again(
    submit: Submit, run: RunDir, tmp_path: Path, answer: str
) -> None:
    script, said = UNCLEAR[answer]
    queue = FakeQueue()
    with pytest.raises(ClusterError, match="it is not in the queue") as caught:
        submit(script, queue, limit_s=0.3 if answer == "too slow" else 20.0)
    assert said in caught.value.message
    assert "squeue --me" in caught.value.hint
    assert len(queue.looked_for) == len(LOOKS_AFTER_S)
    assert (len(calls(tmp_path)), queue.cancelled, run.job_json.exists()) == (1, [], False)
    # What may still arrive finds this mark, which is the one in its script.
    (mark,) = marks(run)
    assert (tmp_path / "script").read_text().splitlines()[1] == f"# {mark}"


def test_a_queue_that_does_not_answer_is_named(submit: Submit) -> None:
    with pytest.raises(ClusterError, match="the queue could not be looked at: squeue did not answer"):
        submit(LOST, FakeQueue([None]))


def test_of_several_jobs_none_is_chosen_or_cancelled(submit: Submit, run: RunDir) -> None:
    queue = FakeQueue([["7", "8"]])
    with pytest.raises(ClusterError, match="has become 2 jobs: 7, 8") as caught:
        submit(LOST, queue)
    assert "scancel 7 8" in caught.value.hint
    assert (queue.cancelled, len(marks(run))) == ([], 1)


def test_a_job_that_cannot_be_recorded_is_cancelled(
    submit: Submit, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "write_json", full)
    queue = FakeQueue()
    with pytest.raises(OSError, match="No space left"):
        submit("echo 4711", queue)
    assert queue.cancelled == ["4711"]
    assert len(marks(run)) == 1


def test_a_command_that_is_not_there_was_not_submitted(run: RunDir, tmp_path: Path) -> None:
    a_tool(tmp_path / "tools", "srun", "")
    (tmp_path / "tools" / "timeout").symlink_to("/usr/bin/timeout")
    queue = FakeQueue()
    environ = {**os.environ, "PATH": str(tmp_path / "tools")}
    with pytest.raises(ClusterError, match="sbatch"):
        Launch(run, 1, lambda mark: "", environ, client=queue, clock=ManualClock())()
    assert queue.looked_for == []


BANNER = "*** Maintenance on 2026-12-24 ***"


@pytest.mark.parametrize("answer", [f"echo '{BANNER}'; echo '12;east'; echo", "echo Submitted batch job 12"])
def test_the_job_id_is_found_among_what_a_site_adds(submit: Submit, answer: str) -> None:
    assert submit(answer).record.job_id == "12"
