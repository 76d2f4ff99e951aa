from pathlib import Path

from hpcflow.observe.logs import LogReader, log_files
from hpcflow.rundir import AttemptDir, RunDir


def an_attempt(folder: Path) -> AttemptDir:
    attempt = RunDir(folder).attempt(1)
    attempt.logs.mkdir(parents=True)
    return attempt


def test_lines_of_all_processes_carry_their_role_and_rank(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path)
    attempt.log("actor", 10).write_text("ten\n")
    attempt.log("actor", 2).write_text("two\n\nagain\n")
    attempt.log("driver", 0).write_text("step\n")
    (attempt.logs / "notes.txt").write_text("not a log\n")
    lines = [(line.role, line.rank, line.text) for line in LogReader(attempt).new_lines()]
    assert lines == [
        ("actor", 2, "two"),
        ("actor", 2, ""),
        ("actor", 2, "again"),
        ("actor", 10, "ten"),
        ("driver", 0, "step"),
    ]
    assert [file.rank for file in log_files(attempt, role="actor", rank=10)] == [10]


def test_an_unfinished_line_waits_for_its_end_or_for_the_end_of_the_run(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path)
    log = attempt.log("actor", 0)
    log.write_bytes(b"one\ntw")
    reader = LogReader(attempt)
    assert [line.text for line in reader.new_lines()] == ["one"]
    with log.open("ab") as file:
        file.write(b"o\nthr\xffee")
    assert [line.text for line in reader.new_lines()] == ["two"]
    assert [line.text for line in reader.new_lines()] == []
    assert [line.text for line in reader.new_lines(final=True)] == ["thr\ufffdee"]
    assert [line.text for line in reader.new_lines(final=True)] == []


def test_a_log_that_appears_later_is_picked_up(tmp_path: Path) -> None:
    attempt = an_attempt(tmp_path)
    reader = LogReader(attempt, role="critic")
    assert list(reader.new_lines()) == []
    attempt.log("critic", 0).write_text("hello\n")
    attempt.log("actor", 0).write_text("not asked for\n")
    assert [line.text for line in reader.new_lines()] == ["hello"]
