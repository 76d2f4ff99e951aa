from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hpcflow.errors import RunDirError, UserError
from hpcflow.launch import local_executor, submit
from hpcflow.observe.exit_report import ExitReport, Outcome
from hpcflow.observe.job import JobRecord
from hpcflow.observe.processes import ProcessMark
from hpcflow.rundir import RunDir
from tests.support.plans import a_plan
from tests.support.run_folder import RunMaker, elsewhere, gone_process


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunDir, int]]:
    """Launches, noted instead of made."""
    calls: list[tuple[RunDir, int]] = []

    def note(run: RunDir, attempt: int) -> JobRecord:
        calls.append((run, attempt))
        return JobRecord(
            executor="local", job_id="1", submitted="", attempt=attempt, controller=gone_process()
        )

    monkeypatch.setattr(local_executor, "launch", note)
    return calls


def ended(tmp_path: Path, outcome: Outcome | None, *, alive: ProcessMark | None = None) -> RunMaker:
    """A run of one attempt; without an outcome it is lost, or led by `alive`."""
    maker = RunMaker(tmp_path / "run", alive=alive or gone_process()).submitted()
    a_plan().save(maker.run.plan_json)
    maker.started()
    maker.driving(steps=200)
    if outcome is not None:
        report = ExitReport(
            attempt=1,
            outcome=outcome,
            cause=outcome,
            role="driver",
            rank=0,
            host="h",
            message="m",
            time=1e6,
        )
        maker.ended(report)
    return maker


@pytest.mark.parametrize("outcome", ["stopped", "failed", None])
def test_a_run_that_ended_early_is_resumed_from_its_newest_complete_checkpoint(
    tmp_path: Path, launched: list[tuple[RunDir, int]], outcome: Outcome | None
) -> None:
    maker = ended(tmp_path, outcome)
    maker.checkpoint(10)
    maker.checkpoint(20, complete=False)
    submitted = submit.resume(maker.run)
    assert (submitted.resumes_from, submitted.record.attempt) == (10, 2)
    assert launched == [(maker.run, 2)]


def test_a_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    assert submit.resume(ended(tmp_path, "failed").run).resumes_from is None


@pytest.mark.parametrize(
    ("outcome", "leader", "refusal"),
    [
        ("done", "gone", "is done: all 200 steps"),
        (None, "alive", "is running"),
        (None, "elsewhere", "nobody here can tell whether run still runs"),
    ],
)
def test_no_second_job_is_started(
    tmp_path: Path,
    launched: list[tuple[RunDir, int]],
    outcome: Outcome | None,
    leader: str,
    refusal: str,
) -> None:
    import os

    marks = {"gone": gone_process(), "alive": ProcessMark.of(os.getpid()), "elsewhere": elsewhere()}
    maker = ended(tmp_path, outcome, alive=marks[leader])
    if leader == "elsewhere":
        for file in (maker.run.state_json, maker.run.attempt(1).supervisor_json):
            os.utime(file, (1e6, 1e6))
    with pytest.raises(UserError, match=refusal):
        submit.resume(maker.run)
    assert launched == []


def test_two_resumes_at_once_make_one_job(tmp_path: Path, launched: list[tuple[RunDir, int]]) -> None:
    maker = ended(tmp_path, "stopped")
    with submit._alone(maker.run), pytest.raises(UserError, match="being started by another command"):
        submit.resume(maker.run)
    assert launched == []
    submit.resume(maker.run)


def test_a_folder_that_another_submission_took_meanwhile_is_left_alone(tmp_path: Path) -> None:
    other = RunDir(tmp_path / "run")
    other.path.mkdir()
    other.spec_json.write_text("{}")
    with pytest.raises(RunDirError, match="holds another run"), submit._fresh_folder(other.path):
        pytest.fail("a taken folder was given away")
    assert other.spec_json.read_text() == "{}"


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunDirError, match="cannot be written: No space left"), submit._fresh_folder(folder):
        raise full
    assert not folder.exists()


def test_a_damaged_run_folder_is_the_users_fault(tmp_path: Path) -> None:
    maker = ended(tmp_path, "stopped")
    maker.run.plan_json.write_text("{")
    with pytest.raises(RunDirError, match=r"plan\.json cannot be read"):
        submit.resume(maker.run)
    maker.run.plan_json.unlink()
    with pytest.raises(RunDirError, match=r"has no spec\.json or plan\.json"):
        submit.resume(maker.run)
