from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from hpcflow.errors import RunDirError, UnclearSubmission, UserError
from hpcflow.launch import local_executor, machine, slurm_launch, submit
from hpcflow.launch.checks import Checked
from hpcflow.observe.exit_report import ExitReport, Outcome
from hpcflow.observe.job import JobRecord, read_job
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.status import read_status
from hpcflow.plan.plan import Plan
from hpcflow.rundir import RunDir
from hpcflow.spec.load import save
from hpcflow.spec.run import RunSpec
from tests.support.plans import a_plan
from tests.support.run_folder import RunMaker, elsewhere, gone_process
from tests.support.specs import tiny_spec


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
    marks = {"gone": gone_process(), "alive": ProcessMark.of(os.getpid()), "elsewhere": elsewhere()}
    maker = ended(tmp_path, outcome, alive=marks[leader])
    if leader == "elsewhere":
        for file in (maker.run.state_json, maker.run.attempt(1).supervisor_json):
            os.utime(file, (1e6, 1e6))
    with pytest.raises(UserError, match=refusal):
        submit.resume(maker.run)
    assert launched == []


def test_a_run_of_slurm_is_resumed_on_slurm_whatever_this_machine_has(
    tmp_path: Path, launched: list[tuple[RunDir, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own cluster is asked and used; GPUs of the login node do not matter."""
    maker = ended(tmp_path, "stopped")
    status = read_status(maker.run)
    monkeypatch.setattr(submit, "read_status", lambda run: status)
    maker.submitted_to_slurm(slurm_conf="/its/slurm.conf")
    save(tiny_spec(tmp_path / "spec"), maker.run.spec_json)
    record = read_job(maker.run)
    assert record is not None
    monkeypatch.setenv("SLURM_CONF", "/mine")
    monkeypatch.setattr(machine, "available_gpus", lambda: pytest.fail("GPUs were counted"))
    seen: list[tuple[str | None, object]] = []

    def settle(spec: RunSpec, plan: Plan) -> Checked:
        seen.append((os.environ.get("SLURM_CONF"), plan))
        return Checked(plan, ("a warning",))

    def launch(run: RunDir, attempt: int, settled: Plan) -> tuple[JobRecord, tuple[str, ...]]:
        seen.append((os.environ.get("SLURM_CONF"), settled))
        return msgspec.structs.replace(record, attempt=attempt), ("a note",)

    monkeypatch.setattr(slurm_launch, "settle", settle)
    monkeypatch.setattr(slurm_launch, "launch", launch)
    submitted = submit.resume(maker.run)
    assert (submitted.record.executor, submitted.record.attempt) == ("slurm", 2)
    assert submitted.notes == ("a warning", "a note")
    assert [conf for conf, _ in seen] == ["/its/slurm.conf"] * 2
    assert os.environ["SLURM_CONF"] == "/mine"
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


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "a\x7f", "a\udcff"])
def test_a_path_that_no_script_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunDirError, match="has unprintable characters"):
        submit.run_folder(tiny_spec(tmp_path), tmp_path / name)


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


def test_what_ends_a_job_that_may_still_arrive_stays_behind(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")

    def give_up() -> None:
        run.spec_json.write_text("{}")
        run.submitit.mkdir()
        (run.submitit / "withdrawn_1").touch()
        raise UnclearSubmission("nobody can tell")

    with pytest.raises(UnclearSubmission), submit._fresh_folder(run.path):
        give_up()
    assert [entry.name for entry in run.path.rglob("*")] == ["submitit", "withdrawn_1"]
    with pytest.raises(RunDirError, match="is not empty"):
        submit.run_folder(tiny_spec(tmp_path), run.path)
