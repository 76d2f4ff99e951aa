"""The data of the demo as the tool writes it."""

import json
from pathlib import Path

import make_tiny_model as tool
from demo_tasks import sums


def test_data_rows_have_prompt_and_answer(tmp_path: Path) -> None:
    split = sums(seed=0)
    tool._write_data(split, tmp_path)
    lines = (tmp_path / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    first = split.heldout[0]
    assert len(lines) == len(split.heldout)
    assert json.loads(lines[0]) == {"prompt": first.prompt, "answer": first.answer}
