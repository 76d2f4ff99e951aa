import json
import math
from pathlib import Path

from hpcflow.observe.metrics import (
    TAIL_BYTES,
    MetricsReader,
    MetricsWriter,
    figure,
    latest_row,
    read_rows,
)
from hpcflow.rundir import RunDir
from tests.support.run_folder import train_row


def test_readers_take_the_last_row_of_a_step_and_keep_the_order_of_steps(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = MetricsWriter(run.metrics_jsonl)
    for step in (1, 2, 3):
        first.write(train_row(step, reward=0.1))
    first.close()
    resumed = MetricsWriter(run.metrics_jsonl)
    for step in (2, 3, 4):
        resumed.write(train_row(step, attempt=2, reward=0.2))
    resumed.close()
    rows = read_rows(run)
    assert [(row["step"], row["attempt"], row["reward"]) for row in rows] == [
        (1, 1, 0.1),
        (2, 2, 0.2),
        (3, 2, 0.2),
        (4, 2, 0.2),
    ]


def test_training_and_heldout_rows_of_one_step_do_not_replace_each_other(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer = MetricsWriter(run.metrics_jsonl)
    writer.write(train_row(5))
    writer.write({"kind": "heldout", "attempt": 1, "step": 5, "score": 0.5})
    writer.close()
    assert [row["kind"] for row in read_rows(run)] == ["heldout", "train"]


def test_the_latest_row_is_found_without_reading_a_long_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert latest_row(run, "train") is None
    writer = MetricsWriter(run.metrics_jsonl)
    for step in range(1, 2001):
        writer.write(train_row(step))
    writer.write({"kind": "heldout", "attempt": 1, "step": 2000, "score": 0.5})
    writer.close()
    with run.metrics_jsonl.open("ab") as file:
        file.write(b'{"kind": "train", "step": 2001')
    assert run.metrics_jsonl.stat().st_size > TAIL_BYTES
    row = latest_row(run, "train")
    assert row is not None
    assert row["step"] == 2000
    assert latest_row(run, "save") is None


def test_an_unfinished_last_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert reader.new_rows() == []
    line = json.dumps(train_row(1)).encode() + b"\n"
    path.write_bytes(line + line[:20])
    assert [row["step"] for row in reader.new_rows()] == [1]
    assert reader.new_rows() == []
    with path.open("ab") as file:
        file.write(line[20:])
    assert len(reader.new_rows()) == 1


def test_a_resumed_run_does_not_write_into_the_line_its_killed_attempt_left(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.metrics_jsonl.write_bytes(json.dumps(train_row(1)).encode() + b'\n{"kind": "tra')
    writer = MetricsWriter(run.metrics_jsonl)
    writer.write(train_row(2))
    writer.close()
    assert [row["step"] for row in read_rows(run)] == [1, 2]


def test_what_is_no_finite_number_is_not_measured(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    writer = MetricsWriter(run.metrics_jsonl)
    writer.write(train_row(1, loss=math.nan, seconds={"step": math.inf}, maxima=[1.0, -math.inf]))
    writer.close()
    row = json.loads(run.metrics_jsonl.read_text())
    assert (row["loss"], row["seconds"], row["maxima"]) == (None, {"step": None}, [1.0, None])
    assert figure(row, "loss") is None
    assert figure(row, "no such figure") is None
    assert figure(row, "reward") == 0.25


def test_a_row_is_one_write_that_a_reader_sees_at_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(train_row(1))
    assert len(MetricsReader(tmp_path / "metrics.jsonl").new_rows()) == 1
    writer.close()
