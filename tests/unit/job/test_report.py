import signal
import time
from pathlib import Path

import msgspec
import pytest

from hpcflow import atomic
from hpcflow.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEUE
from hpcflow.job import report
from hpcflow.job.supervisor import exit_code, new_attempt
from hpcflow.job.verdict import Evidence, Member, Verdict, death
from hpcflow.observe.exit_report import CAUSES, ExitReport, Outcome, read_exit, write_exit
from hpcflow.observe.state import DriverState
from hpcflow.rundir import AttemptDir, RunDir

ACTOR = Member("actor", 1)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return new_attempt(RunDir(tmp_path))


def build(attempt: AttemptDir, evidence: Evidence, status: int | None = None) -> ExitReport:
    return report.build(
        attempt,
        Verdict("failed", evidence),
        statuses={} if status is None else {evidence.member: status},
        hosts={ACTOR: "node7"},
        resident_bytes={ACTOR: 5, Member("actor", 0): 4},
        gone={Member("b", 0): "b ended", Member("a", 1): "a ended"},
    )


def driving(attempt: AttemptDir, number: int, step: int) -> None:
    now = time.time()
    state = DriverState(attempt=number, step=step, steps=9, phase="update", time=now, started=now)
    run = RunDir(attempt.path.parent)
    atomic.write_json(run.state_json, msgspec.to_builtins(state))


def test_the_report_names_process_host_signal_and_step(attempt: AttemptDir) -> None:
    driving(attempt, 1, 4)
    found = build(attempt, death(ACTOR, -signal.SIGKILL, 0.0))
    assert (found.role, found.rank, found.host) == ("actor", 1, "node7")
    assert (found.signal, found.exit_code, found.step) == (9, None, 4)
    assert "SIGKILL" in found.message
    assert found.resident_bytes == {"actor.0": 4, "actor.1": 5}
    assert found.gone == ["a ended", "b ended"]


def test_the_exit_code_is_that_of_the_process_that_reported(attempt: AttemptDir) -> None:
    evidence = Evidence(ACTOR, "data", "no template", 0.0)
    assert build(attempt, evidence, 3).exit_code == 3
    killed_by_us = build(attempt, evidence, -signal.SIGKILL)
    assert (killed_by_us.exit_code, killed_by_us.signal) == (None, None)


def test_the_step_of_another_attempt_is_not_told(attempt: AttemptDir) -> None:
    driving(attempt, 7, 4)
    assert build(attempt, death(ACTOR, 1, 0.0)).step is None


def test_the_end_of_the_log_is_told(attempt: AttemptDir) -> None:
    path = attempt.log("actor", 1)
    path.write_bytes(b"x" * 50_000 + b"\n" + b"".join(b"line %d\n" % n for n in range(50)))
    with path.open("ab") as file:
        file.write(b"not \xff UTF-8")
    found = build(attempt, death(ACTOR, 1, 0.0))
    assert found.tail[0] == "line 31"
    assert found.tail[-1] == "not \ufffd UTF-8"
    assert found.log == str(path)


def test_without_a_log_there_is_no_tail(attempt: AttemptDir) -> None:
    found = build(attempt, death(Member("actor", -1), 1, 0.0))
    assert (found.log, found.tail) == ("", [])


def test_a_report_survives_its_file(attempt: AttemptDir) -> None:
    assert read_exit(attempt) is None
    written = build(attempt, death(ACTOR, 42, 0.0))
    write_exit(attempt, written)
    assert read_exit(attempt) == written
    attempt.exit_json.write_text("{")
    assert read_exit(attempt) is None


def test_the_supervisor_can_be_reported_as_lost(attempt: AttemptDir) -> None:
    write_exit(attempt, report.lost_report(attempt))
    found = read_exit(attempt)
    assert found is not None
    assert found.cause in CAUSES


@pytest.mark.parametrize(
    ("outcome", "cause", "code"),
    [
        ("done", "done", EXIT_OK),
        ("stopped", "stopped", EXIT_REQUEUE),
        ("stopped", "preempted", EXIT_REQUEUE),
        ("stopped", "aborted", EXIT_FAILED),
        ("failed", "killed", EXIT_FAILED),
    ],
)
def test_exit_codes(attempt: AttemptDir, outcome: Outcome, cause: str, code: int) -> None:
    found = build(attempt, Evidence(ACTOR, cause, "", 0.0))
    assert exit_code(msgspec.structs.replace(found, outcome=outcome)) == code


def test_what_a_person_stopped_is_not_requeued(attempt: AttemptDir) -> None:
    found = msgspec.structs.replace(build(attempt, Evidence(ACTOR, "stopped", "", 0.0)), outcome="stopped")
    assert exit_code(found, by_person=True) == EXIT_INTERRUPTED


def test_attempts_never_share_a_folder(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    numbers = [new_attempt(run).number for _ in range(3)]
    assert numbers == [1, 2, 3]
    (tmp_path / "attempt_4").write_text("a file is in the way")
    assert new_attempt(run).number == 5
