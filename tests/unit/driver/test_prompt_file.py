"""From a data file to prompts: rendering, lengths, and what a bad row costs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hpcflow.driver.prompt_file import read_prompt_sets, read_prompts
from hpcflow.driver.prompts import Prompt
from hpcflow.driver.rendering import Renderer
from hpcflow.errors import FirstStepFault
from hpcflow.spec.run import Data
from tests.support.specs import tiny_spec
from tests.support.tiny_model import VOCABULARY, tiny_config
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

PLAIN = Renderer(tiny_tokenizer(), chat_template=False, vocabulary=VOCABULARY)
CHAT = Renderer(tiny_tokenizer(chat_template=CHAT_TEMPLATE), chat_template=True, vocabulary=VOCABULARY)


def jsonl(folder: Path, *rows: object) -> Path:
    """One line per row; bytes are written as they are."""
    path = folder / "the train, 'file' \u00e4.jsonl"
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read(path: Path, renderer: Renderer = PLAIN, *, wanted: int | None = None, **data: Any) -> list[Prompt]:
    settings = {"max_prompt_tokens": 8, "max_faulty_fraction": 0.5, **data}
    made = Data(train=str(path), heldout="elsewhere.jsonl", **settings)
    return read_prompts("data.train", path, made, renderer, wanted=wanted)


def test_plain_prompts_keep_text_ids_and_row(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "1+1", "answer": 2}, {"prompt": "2+2", "answer": 4})
    first, second = read(path)
    assert (first.id, first.text, first.row) == (0, "1+1", {"prompt": "1+1", "answer": 2})
    assert first.token_ids == tuple(tiny_tokenizer()("1+1")["input_ids"])
    assert second.id == 1


def test_parquet_rows_are_prompts_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"question": ["1+1", " ", "3+3"], "answer": [2, 0, 6]})
    pyarrow.parquet.write_table(table, path)
    taken = read(path, prompt_key="question")
    assert [(prompt.id, prompt.row["answer"]) for prompt in taken] == [(0, 2), (2, 6)]


def test_special_tokens_that_the_tokenizer_adds_are_used_and_counted(tmp_path: Path) -> None:
    renderer = Renderer(tiny_tokenizer(bos=True), chat_template=False, vocabulary=VOCABULARY)
    path = jsonl(tmp_path, {"prompt": "1234567"}, {"prompt": "12345678"})
    (only,) = read(path, renderer)
    assert only.token_ids[0] == 2
    assert len(only.token_ids) == 8


def test_an_end_of_text_that_the_tokenizer_adds_is_left_out() -> None:
    renderer = Renderer(tiny_tokenizer(closing_eos=True), chat_template=False, vocabulary=VOCABULARY)
    assert renderer.render("12").token_ids == PLAIN.render("12").token_ids


def test_chat_prompts_end_where_the_assistant_begins(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    path = jsonl(tmp_path, {"prompt": "hi"}, {"prompt": messages})
    text, chat = read(path, CHAT, chat_template=True, max_prompt_tokens=20)
    assert text.text == "<u>hi<a>"
    assert chat.text == "<s>S<u>U<a>"
    assert len(chat.token_ids) == len(chat.text)


def test_template_text_gets_no_further_special_tokens() -> None:
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE, bos=True)
    assert 2 not in Renderer(tokenizer, chat_template=True, vocabulary=VOCABULARY).render("hi").token_ids


def test_a_chat_length_is_that_of_the_rendered_ids(tmp_path: Path) -> None:
    """The template adds six tokens: the limit is met by two letters, not by three."""
    path = jsonl(tmp_path, {"prompt": "ab"}, {"prompt": "abc"})
    assert [prompt.id for prompt in read(path, CHAT, chat_template=True)] == [0]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "forbidden", "content": "x"}], "no such role"),
        ([{"role": "assistant", "content": "x"}], "nothing is left to answer"),
        ([{"role": "user"}], "role and content"),
        ([], "empty"),
    ],
)
def test_a_chat_that_cannot_be_rendered_costs_its_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, messages: object, reason: str
) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, {"prompt": messages})
    with caplog.at_level(logging.WARNING):
        assert [prompt.id for prompt in read(path, CHAT, chat_template=True)] == [0]
    assert reason in caplog.text


def test_a_missing_chat_template_is_a_spec_fault() -> None:
    with pytest.raises(FirstStepFault, match="no chat template") as caught:
        Renderer(tiny_tokenizer(), chat_template=True, vocabulary=VOCABULARY)
    assert caught.value.cause == "spec"


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_folder_without_config_is_a_spec_fault(tmp_path: Path, with_tokenizer: bool) -> None:
    if with_tokenizer:
        tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(FirstStepFault, match="tokenizer cannot be loaded") as caught:
        Renderer.load(str(tmp_path), chat_template=False)
    assert caught.value.cause == "spec"


def test_a_saved_tokenizer_renders_alike_and_gives_text_back(tmp_path: Path) -> None:
    tiny_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(tmp_path)
    tiny_config().save_pretrained(tmp_path)
    loaded = Renderer.load(str(tmp_path), chat_template=True)
    assert loaded.render("1+1") == CHAT.render("1+1")
    ids = [*PLAIN.render("4 2").token_ids, 1]
    assert loaded.text_of(ids) == "4 2"


def test_a_prompt_id_that_the_model_does_not_know_is_a_spec_fault() -> None:
    largest = max(PLAIN.render("1z").token_ids)
    Renderer(tiny_tokenizer(), chat_template=False, vocabulary=largest + 1).render("1z")
    small = Renderer(tiny_tokenizer(), chat_template=False, vocabulary=largest)
    with pytest.raises(FirstStepFault, match=f"id {largest}, but .* has {largest} tokens") as caught:
        small.render("1z")
    assert caught.value.cause == "spec"


def test_a_prompt_over_the_limit_is_dropped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = jsonl(tmp_path, {"prompt": "12345678"}, {"prompt": "123456789"}, {"prompt": "1"})
    with caplog.at_level(logging.WARNING):
        assert [prompt.id for prompt in read(path)] == [0, 2]
    assert "1 of 3 rows cannot be used" in caplog.text
    assert "line 2: the prompt has 9 tokens, data.max_prompt_tokens is 8" in caplog.text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "1', "not valid JSON"),
        (b'{"prompt": "a\nb"}', "not valid JSON"),
        (b'{"prompt": "\x00"}', "NUL"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b"[1]", "must be an object"),
        (b"{}", "no key 'prompt'"),
        (b'{"prompt": null}', "not null"),
        (b'{"prompt": 3}', "not a number"),
        (b'{"prompt": ["a"]}', "not a list"),
        (b'{"prompt": ""}', "is empty"),
        (b'{"prompt": " \\t"}', "is blank"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_a_malformed_line_costs_that_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes, reason: str
) -> None:
    rows = [{"prompt": str(number)} for number in range(4)]
    path = jsonl(tmp_path, rows[0], rows[1], line, rows[2], rows[3])
    with caplog.at_level(logging.WARNING):
        taken = read(path)
    assert [prompt.text for prompt in taken] == ["0", "1", "2", "3"]
    assert reason in caplog.text
    assert "line 3: " in caplog.text
    assert caplog.text.count("rows cannot be used") == 1


def test_blank_lines_and_crlf_are_no_faults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = jsonl(tmp_path, b'{"prompt": "a"}\r', b"", b'{"prompt": "b"}')
    with caplog.at_level(logging.WARNING):
        assert [(prompt.id, prompt.text) for prompt in read(path)] == [(0, "a"), (1, "b")]
    assert caplog.text == ""


@pytest.mark.parametrize(("allowed", "stops"), [(0.25, False), (0.24, True), (0.0, True)])
def test_too_many_faulty_rows_are_a_data_fault(tmp_path: Path, allowed: float, stops: bool) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, {"prompt": ""}, {"prompt": "b"}, {"prompt": "c"})
    if not stops:
        assert len(read(path, max_faulty_fraction=allowed)) == 3
        return
    with pytest.raises(FirstStepFault, match="1 of 4 rows") as caught:
        read(path, max_faulty_fraction=allowed)
    assert caught.value.cause == "data"
    assert "line 2: 'prompt' is empty" in caught.value.message


def test_only_too_long_prompts_are_a_data_fault_that_tells_the_length(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "1" * 12}, {"prompt": "1" * 10})
    with pytest.raises(FirstStepFault, match="all 2 prompts are longer") as caught:
        read(path, max_faulty_fraction=1.0)
    assert (caught.value.cause, caught.value.role) == ("data", "driver")
    assert "prompts are longer than data.max_prompt_tokens (8)" in caught.value.message
    assert "shortest has 10 tokens" in caught.value.hint


def test_no_usable_row_is_a_data_fault_whatever_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(FirstStepFault, match="2 of 2 rows"):
        read(jsonl(tmp_path, b"{", {"prompt": "1" * 10}), max_faulty_fraction=1.0)


@pytest.mark.parametrize("content", [None, b"", b"\n\n"])
def test_a_missing_or_empty_file_is_a_data_fault(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FirstStepFault, match=r"data\.train") as caught:
        read(path)
    assert caught.value.cause == "data"


def test_many_faults_are_named_in_one_short_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = jsonl(tmp_path, *[{"prompt": ""}] * 30, *[{"prompt": "a"}] * 30)
    with caplog.at_level(logging.WARNING):
        taken = read(path)
    assert taken[0].id == 30
    assert len(caplog.records) == 1
    assert "line 10: " in caplog.text
    assert "line 11: " not in caplog.text
    assert "and 20 more" in caplog.text


def test_the_held_out_set_is_the_first_usable_rows(tmp_path: Path) -> None:
    """Rows after the last wanted one are not looked at: here they would stop the run."""
    rows = [{"prompt": "a"}, {"prompt": "1" * 9}, {"prompt": "b"}, *[{"prompt": ""}] * 20]
    assert [prompt.id for prompt in read(jsonl(tmp_path, *rows), wanted=2)] == [0, 2]


def test_the_spec_decides_seed_order_and_size_of_the_sets(tmp_path: Path) -> None:
    texts = [str(number) for number in range(30)]
    for name, first in (("train", 0), ("heldout", 28)):
        lines = [json.dumps({"prompt": text}) + "\n" for text in [*texts[first:], "a", "b"]]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))

    def sets(*overrides: str) -> tuple[list[str], list[str], int]:
        made = read_prompt_sets(tiny_spec(tmp_path, "evaluation.prompts=3", *overrides), PLAIN)
        taken = [prompt.text for prompt in made.stream.next(32)]
        return taken, [prompt.text for prompt in made.heldout.prompts], made.heldout.overlap

    taken, heldout, overlap = sets("data.shuffle=false")
    assert (taken, heldout, overlap) == ([*texts, "a", "b"], ["28", "29", "a"], 3)
    assert sets("seed=1") == sets("seed=1")
    assert sets("seed=1")[0] != sets("seed=2")[0] != taken
