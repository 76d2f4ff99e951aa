from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcflow.errors import EXIT_USER, DataError
from hpcflow.spec import rows
from hpcflow.spec.rows import Row, read_rows


def fault(path: Path, *, chat_template: bool = False) -> str:
    with pytest.raises(DataError) as caught:
        list(read_rows(path, prompt_key="prompt", chat_template=chat_template))
    assert caught.value.exit_code == EXIT_USER
    return str(caught.value).replace(f"{path.parent}/", "")


GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "d.jsonl: the file holds no rows"),
        (b"\n \r\n\n", "d.jsonl: the file holds no rows"),
        (
            GOOD + b'{"prompt": "1+',
            "d.jsonl:2: the last line is cut off\n  the file may have been copied while it was written",
        ),
        (GOOD + b'{"prompt": }\n', "d.jsonl:2: not valid JSON: Expecting value, column 12"),
        (
            GOOD * 2 + b'{"prompt": "\xe9"}\n',
            "d.jsonl:3: byte 0xe9 is not UTF-8\n  save the file as UTF-8",
        ),
        (
            b"\xef\xbb\xbf" + GOOD,
            "d.jsonl:1: the file begins with a byte order mark\n  save the file as plain UTF-8",
        ),
        (
            GOOD.decode().encode("utf-16"),
            "d.jsonl:1: the file begins with a byte order mark\n  save the file as plain UTF-8",
        ),
        (
            GOOD + b'{"prompt": "\0"}\n',
            "d.jsonl:2: holds a NUL byte: the file is damaged, or is no text",
        ),
        (
            GOOD + b'\n{"question": "a", "answer": "b"}\n',
            "d.jsonl:3: there is no key 'prompt'\n"
            "  it has: question, answer; set data.prompt_key to the key of the prompts",
        ),
        (b'{"prompt": null}\n', "d.jsonl:1: 'prompt' must be text, not null"),
        (b'{"prompt": ""}\n', "d.jsonl:1: 'prompt' is empty"),
        (b'{"prompt": " \\n\\t"}\n', "d.jsonl:1: 'prompt' is blank"),
        (b'{"prompt": 12}\n', "d.jsonl:1: 'prompt' must be text, not a number"),
        (b'{"prompt": true}\n', "d.jsonl:1: 'prompt' must be text, not true or false"),
        (b'{"prompt": {"a": 1}}\n', "d.jsonl:1: 'prompt' must be text, not an object"),
        (
            b'{"prompt": ["a"]}\n',
            "d.jsonl:1: 'prompt' must be text, not a list\n  lists of messages need data.chat_template: true",
        ),
        (
            b'{"prompt": "\\ud800"}\n',
            "d.jsonl:1: 'prompt' holds half of a surrogate pair, which is no character",
        ),
        (b'["prompt"]\n', "d.jsonl:1: must be an object {...}, not a list"),
        (b'{"prompt": "a", "x": NaN}\n', "d.jsonl:1: not valid JSON: NaN is no JSON value"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    assert fault(path) == message


def test_deep_json_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"prompt": ' + b"[" * 200_000 + b"\n")
    assert fault(path).startswith("d.jsonl:1: not valid JSON")


def test_line_ends_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a file, of 'prompts' \u00fc.jsonl"
    path.write_bytes(b'{"prompt": "a"}\r\n\r\n{"prompt": "b", "n": 1}')
    found = list(read_rows(path, prompt_key="prompt"))
    assert found == [Row(1, {"prompt": "a"}), Row(3, {"prompt": "b", "n": 1})]


def test_the_limit_keeps_later_faults_for_the_job(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD * 3 + b"broken\n")
    assert len(list(read_rows(path, prompt_key="prompt", limit=3))) == 3
    assert fault(path) == "d.jsonl:4: not valid JSON: Expecting value, column 1"


def test_chat_messages_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    good = {"prompt": [{"role": "user", "content": "hello"}]}
    path.write_text(json.dumps(good))
    assert [row.data for row in read_rows(path, prompt_key="prompt", chat_template=True)] == [good]
    for messages, message in (
        ([], "'prompt' is an empty list of messages"),
        ([{"role": "user"}], "message 1 of 'prompt' needs the keys role and content"),
        (
            [{"role": "user", "content": 3}],
            "content of message 1 of 'prompt' must be text, not a number",
        ),
        ([{"role": "user", "content": " "}], "'prompt[1].content' is blank"),
    ):
        path.write_text(json.dumps({"prompt": messages}))
        assert fault(path, chat_template=True) == f"d.jsonl:1: {message}"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert fault(tmp_path / "none.jsonl") == "none.jsonl: there is no such file"
    assert fault(tmp_path / "a.csv") == "a.csv: must end in .jsonl or .parquet"
    (tmp_path / "d.jsonl").mkdir()
    assert fault(tmp_path / "d.jsonl") == "d.jsonl: is no file"


def test_parquet_rows_are_read_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b"], "answer": [1, 2]}), path)
    found = list(read_rows(path, prompt_key="prompt"))
    assert found == [Row(1, {"prompt": "a", "answer": 1}), Row(2, {"prompt": "b", "answer": 2})]


def test_faults_of_parquet_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    path.write_bytes(b"no parquet at all")
    assert fault(path).startswith("d.parquet: not a readable Parquet file: ")
    path.write_bytes(b"")
    assert fault(path).startswith("d.parquet: not a readable Parquet file: ")
    for table, message in (
        (
            {"question": ["a"], "answer": ["b"]},
            "d.parquet: there is no column 'prompt'\n"
            "  it has: question, answer; set data.prompt_key to the column of the prompts",
        ),
        (
            {"prompt": [["a"]]},
            "d.parquet:1: 'prompt' must be text, not a list\n"
            "  lists of messages need data.chat_template: true",
        ),
        ({"prompt": ["a", None]}, "d.parquet:2: 'prompt' must be text, not null"),
        ({"prompt": [1]}, "d.parquet:1: 'prompt' must be text, not a number"),
        ({"prompt": pa.array([], pa.string())}, "d.parquet: the file holds no rows"),
    ):
        pq.write_table(pa.table(table), path)
        assert fault(path) == message
    pq.write_table(pa.table({"prompt": ["some text"] * 1000}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert fault(path).startswith("d.parquet: not a readable Parquet file: ")


def test_faulty_rows_can_be_counted_instead(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD + b'broken\n{"prompt": 1}\n' + GOOD)
    seen: list[tuple[int, str]] = []
    usable = read_rows(
        path, prompt_key="prompt", on_fault=lambda line, fault: seen.append((line, fault.place))
    )
    assert [row.line for row in usable] == [1, 4]
    assert seen == [(2, f"{path}:2"), (3, f"{path}:3")]


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", len(GOOD) + 1)
    path = tmp_path / "d.jsonl"
    path.write_bytes(GOOD + GOOD[:-1] + b" " * 100)
    assert fault(path) == f"d.jsonl:2: the line is longer than {len(GOOD) + 1} bytes"


def test_a_parquet_value_that_python_cannot_hold_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    moments = pa.array([1000, 1], pa.timestamp("ns"))
    pq.write_table(pa.table({"prompt": ["a", "b"], "at": moments}), path)
    assert fault(path).startswith("d.parquet:2: cannot be read: ")
    seen: list[int] = []
    usable = read_rows(path, prompt_key="prompt", on_fault=lambda line, _: seen.append(line))
    assert ([row.line for row in usable], seen) == ([1], [2])


def test_a_message_names_some_of_many_keys(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({f"k{number}": 0 for number in range(1000)}) + "\n")
    assert "k18, k19 and 980 more; set data.prompt_key" in fault(path)
    path.write_text("{}\n")
    assert "it has: none; set" in fault(path)
