from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from hpcflow.errors import DataError, SpecErrors
from hpcflow.spec.files import check_files
from hpcflow.spec.run import RunSpec
from tests.support.specs import tiny_spec


def safetensors(size: int) -> bytes:
    """A weight file of one tensor of `size` bytes."""
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    return headed(json.dumps(header).encode()) + bytes(size)


def headed(header: bytes) -> bytes:
    """The beginning of a weight file, up to its first tensor."""
    return struct.pack("<Q", len(header)) + header


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    """A spec all of whose files are there."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 16}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(safetensors(100))
    (tmp_path / "rewards.py").write_text("def score(prompt, response, row): return 1.0\n")
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a"}\n')
    return tiny_spec(tmp_path)


def faults(spec: RunSpec, folder: Path) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        check_files(spec)
    return [str(fault).replace(f"{folder}/", "") for fault in caught.value.faults]


def test_a_spec_whose_files_are_there_passes(spec: RunSpec) -> None:
    check_files(spec)


def test_everything_missing_is_named_at_once(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "roles.critic.model=/nowhere/critic")
    assert faults(spec, tmp_path) == [
        "ppo.yaml:4 model.path: there is no such folder (got model)\n"
        "  a folder, seen from the spec's; tools/demo makes the demo's, others are downloaded before",
        "--set roles.critic.model: there is no such folder (got /nowhere/critic)\n"
        "  a folder, seen from the spec's; tools/demo makes the demo's, others are downloaded before",
        "ppo.yaml:25 roles.reward.function: there is no such file (got rewards.py)",
        "ppo.yaml:6 data.train: there is no such file (got train.jsonl)",
        "ppo.yaml:7 data.heldout: there is no such file (got heldout.jsonl)",
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", None, "no config.json in the folder"),
        ("config.json", b"[]", "config.json must hold a JSON object"),
        ("config.json", b"{", "config.json is not valid JSON: "),
        ("config.json", b"\xff", "config.json is not valid JSON: "),
        ("config.json", b"[" * 200_000, "config.json is not valid JSON: nested too deeply"),
        ("tokenizer.json", None, "no tokenizer in the folder: none of tokenizer.json, "),
        ("model.safetensors", None, "no weights in the folder: none of model.safetensors, "),
        ("model.safetensors", b"", "model.safetensors is empty"),
        (
            "model.safetensors",
            safetensors(100)[:-1],
            "model.safetensors is damaged, or was not downloaded whole",
        ),
        (
            "model.safetensors",
            headed(b'{"w": {"data_offsets": [0, "x"]}}'),
            "model.safetensors is damaged, or was not downloaded whole",
        ),
        (
            "model.safetensors",
            headed(b"[" * 200_000),
            "model.safetensors is damaged, or was not downloaded whole",
        ),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1",
            "model.safetensors is damaged, or was not downloaded whole",
        ),
    ],
)
def test_a_model_folder_without_a_part_is_refused(
    spec: RunSpec, tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    (tmp_path / "model" / name).unlink()
    if content is not None:
        (tmp_path / "model" / name).write_bytes(content)
    (message,) = faults(spec, tmp_path)
    assert message.startswith(f"ppo.yaml:4 model.path: {problem}")


def test_weights_in_shards_must_all_be_there(spec: RunSpec, tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert faults(spec, tmp_path) == [
        "ppo.yaml:4 model.path: b.safetensors is missing, which model.safetensors.index.json names "
        "(got model)"
    ]
    (model / "b.safetensors").write_bytes(safetensors(3))
    check_files(spec)


def test_random_weights_need_no_weight_files(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").unlink()
    check_files(tiny_spec(tmp_path, "model.random_weights=true"))


def test_a_window_that_is_too_short_is_refused(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").write_text('{"text_config": {"n_positions": 15}}')
    assert faults(spec, tmp_path) == [
        "ppo.yaml:4 model.path: the model's window is 15 tokens, but 16 are needed (got model)\n"
        "  lower data.max_prompt_tokens or roles.rollout.max_response_tokens"
    ]


def test_a_reward_model_needs_its_folder(spec: RunSpec, tmp_path: Path) -> None:
    reward = f"roles.reward={{kind: model, model: {tmp_path}/judge, microbatch_per_gpu: 1}}"
    assert faults(tiny_spec(tmp_path, reward), tmp_path) == [
        "--set roles.reward.model: there is no such folder (got judge)\n"
        "  a folder, seen from the spec's; tools/demo makes the demo's, others are downloaded before"
    ]


def test_the_first_rows_of_both_data_files_are_read(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "heldout.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    with pytest.raises(DataError, match=r"heldout\.jsonl:2: 'prompt' is empty"):
        check_files(spec)
    rows = '{"prompt": "a"}\n' * 200
    (tmp_path / "heldout.jsonl").write_text(rows + "broken\n")
    check_files(spec)
