from pathlib import Path

import pytest

from hpcflow.observe.logs import Chosen, LogReader, batch_log, log_files, submission_tail
from hpcflow.rundir import AttemptDir, RunDir


def an_attempt(folder: Path, number: int = 1) -> AttemptDir:
    attempt = RunDir(folder).attempt(number)
    attempt.logs.mkdir(parents=True)
    return attempt


def new_lines(reader: LogReader, *attempts: AttemptDir, final: bool = False) -> list[str]:
    return [line.text for line in reader.new_lines(log_files(attempts), final=final)]


def test_lines_of_all_processes_carry_their_attempt_role_and_rank(tmp_path: Path) -> None:
    first, second = an_attempt(tmp_path), an_attempt(tmp_path, 2)
    first.log("actor", 10).write_text("ten\n")
    first.log("actor", 2).write_text("two\n\nagain\n")
    first.log("step_actor_reference", 0).write_text("srun: error\n")
    (first.logs / "notes.txt").write_text("not a log\n")
    second.log("driver", 0).write_text("step\n")
    lines = LogReader().new_lines(log_files([first, second]))
    assert [(line.file.source, line.text) for line in lines] == [
        ("1/actor.2", "two"),
        ("1/actor.2", ""),
        ("1/actor.2", "again"),
        ("1/actor.10", "ten"),
        ("1/step_actor_reference.0", "srun: error"),
        ("2/driver.0", "step"),
    ]
    assert [file.rank for file in log_files([first, second], Chosen("actor", 10))] == [10]


def test_an_unfinished_line_waits_for_its_end_or_for_the_end_of_the_run(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path)
    log = attempt.log("actor", 0)
    log.write_bytes(b"one\ntw")
    reader = LogReader()
    assert new_lines(reader, attempt) == ["one"]
    with log.open("ab") as file:
        file.write(b"o\nthr\xffee")
    assert new_lines(reader, attempt) == ["two"]
    assert new_lines(reader, attempt) == []
    assert new_lines(reader, attempt, final=True) == ["thr\ufffdee"]
    assert new_lines(reader, attempt, final=True) == []


def test_a_log_that_appears_later_is_picked_up(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path)
    reader, critic = LogReader(), Chosen(role="critic")
    assert list(reader.new_lines(log_files([attempt], critic))) == []
    attempt.log("critic", 0).write_text("hello\n")
    attempt.log("actor", 0).write_text("not asked for\n")
    assert [line.text for line in reader.new_lines(log_files([attempt], critic))] == ["hello"]


def test_the_batch_scripts_log_belongs_to_no_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert batch_log(run) == []
    run.batch_log.write_text("slurmstepd: error: *** JOB 7 CANCELLED ***\n")
    assert [file.source for file in batch_log(run)] == ["batch.0"]
    assert batch_log(run, Chosen(role="actor")) == []
    assert len(batch_log(run, Chosen(role="batch", rank=0))) == 1


@pytest.mark.parametrize("slurm", [True, False])
def test_the_end_of_what_a_submission_printed(tmp_path: Path, slurm: bool) -> None:
    run = RunDir(tmp_path)
    assert submission_tail(run) == []
    run.submitit.mkdir()
    assert submission_tail(run) == []
    log = run.batch_log if slurm else run.submitit / "4711_0_log.err"
    log.write_text("".join(f"{number}\n" for number in range(30)))
    assert submission_tail(run, lines=2) == ["28", "29"]
