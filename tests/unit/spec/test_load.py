from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from hpcflow.errors import EXIT_USER, SpecErrors
from hpcflow.spec.load import load, load_resolved, save
from tests.support.specs import SPEC, tiny_spec, write_spec


def faults(path: Path, *overrides: str) -> list[str]:
    """The messages of all faults, with the folder of the spec left out."""
    with pytest.raises(SpecErrors) as caught:
        load(path, overrides)
    assert caught.value.exit_code == EXIT_USER
    return [str(fault).replace(f"{path.parent}/", "") for fault in caught.value.faults]


def edited(folder: Path, old: str, new: str) -> Path:
    assert old in SPEC
    return write_spec(folder, SPEC.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "  path: model\n",
            "  path: model\n  gpus: 2\n",
            "ppo.yaml:5 model.gpus: unknown key\n  valid keys: dtype, path, random_weights",
        ),
        (
            "    max_response_tokens: 8\n",
            "    max_response_tokens: 8\n    gpus: 2\n",
            "ppo.yaml:28 roles.rollout.gpus: unknown key\n  did you mean gpus_per_node?",
        ),
        (
            "prompts_per_step: 8",
            "promts_per_step: 8",
            "ppo.yaml:10 algorithm.promts_per_step: unknown key\n  did you mean prompts_per_step?",
        ),
        (
            "  path: model\n",
            "  path: model\n  tensor_parallel: 2\n",
            "ppo.yaml:5 model.tensor_parallel: unknown key\n"
            "  this key belongs to roles.rollout.tensor_parallel",
        ),
        (
            "function: rewards.py:score",
            "function: rewards.py:score\n    microbatch_per_gpu: 2",
            "ppo.yaml:26 roles.reward.microbatch_per_gpu: unknown key\n"
            "  this key belongs to another kind; valid keys: function, gpus_per_node, kind, nodes, "
            "processes, ranks_per_node, share_with, timeout_s",
        ),
        (
            "steps: 10",
            "steps: -10",
            "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got -10)",
        ),
        (
            "steps: 10",
            "steps: true",
            "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got true)",
        ),
        (
            "steps: 10",
            "steps: 10.0",
            "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got 10.0)",
        ),
        (
            "steps: 10",
            "steps: 1000000000000",
            "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got 1000000000000)",
        ),
        (
            "steps: 10",
            "steps: ",
            "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got nothing)",
        ),
        (
            "learning_rate: 1e-4",
            "learning_rate: .nan",
            "ppo.yaml:16 roles.actor.optimizer.learning_rate: must be a number from 0 to 1 (got .nan)",
        ),
        (
            "learning_rate: 1e-4",
            "learning_rate: -.inf",
            "ppo.yaml:16 roles.actor.optimizer.learning_rate: must be a number from 0 to 1 (got -.inf)",
        ),
        (
            "learning_rate: 1e-4",
            "learning_rate: 1e999",
            "ppo.yaml:16 roles.actor.optimizer.learning_rate: must be a number from 0 to 1 (got 1e999)",
        ),
        (
            "learning_rate: 1e-4",
            "learning_rate: '1e-4'",
            "ppo.yaml:16 roles.actor.optimizer.learning_rate: must be a number from 0 to 1 (got '1e-4')",
        ),
        (
            "steps: 10\n",
            "",
            "ppo.yaml:1 steps: this key is required\n  valid: a whole number from 1 to 1000000",
        ),
        (
            "    kind: function\n",
            "",
            "ppo.yaml:23 roles.reward.kind: this key is required\n  valid: 'function' or 'model'",
        ),
        (
            "kind: function",
            "kind: fonction",
            "ppo.yaml:24 roles.reward.kind: must be 'function' or 'model' (got 'fonction')",
        ),
        (
            "rewards.py:score",
            "rewards.py",
            "ppo.yaml:25 roles.reward.function: "
            "must be file.py:function or package.module:function (got 'rewards.py')",
        ),
        (
            "  path: model\n",
            "  path: model\n  dtype: float16\n",
            "ppo.yaml:5 model.dtype: must be one of float32, bfloat16 (got 'float16')",
        ),
        ("model:\n  path: model", "model: 3", "ppo.yaml:3 model: must be a mapping (got 3)"),
        ("path: model", "path: ''", "ppo.yaml:4 model.path: must not be empty (got '')"),
        (
            "    microbatch_per_gpu: 2\n",
            "    microbatch_per_gpu: 2\n    zero_stage: true\n",
            "ppo.yaml:15 roles.actor.zero_stage: must be one of 1, 2, 3 (got true)",
        ),
        (
            "name: tiny",
            'name: "a\\tb"',
            "ppo.yaml:1 name: must be 1 to 120 characters, no control characters (got 'a\\tb')",
        ),
        (
            "train: train.jsonl",
            "train: train.csv",
            "ppo.yaml:6 data.train: must end in .jsonl or .parquet (got 'train.csv')",
        ),
        (
            "heldout: heldout.jsonl",
            "heldout: ./train.jsonl",
            "ppo.yaml:7 data.heldout: the held-out set must not be the training set (got './train.jsonl')",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert faults(edited(tmp_path, old, new)) == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ppo.yaml:1: the file is empty\n  see configs/ for examples"),
        ("# nothing\n", "ppo.yaml:1: the file is empty\n  see configs/ for examples"),
        ("- a\n", "ppo.yaml:1: a spec is a mapping of keys\n  see configs/ for examples"),
        ("steps: 1\nsteps: 2\n", "ppo.yaml:2 steps: duplicate key, first given in line 1"),
        ("name: a\nsteps: [1\n", "ppo.yaml:3: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n\tb: 2\n", "ppo.yaml:2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\nb: \x07\n", "ppo.yaml:2: character U+0007 is not allowed"),
        ("a: 1\n---\nb: 1\n", "ppo.yaml:2: not valid YAML: but found another document"),
        ("1: a\n", "ppo.yaml:1: a key must be text (got 1)"),
        ("a: *b\n", "ppo.yaml:1: not valid YAML: found undefined alias 'b'"),
        ("a: &b [*b]\n", "ppo.yaml:1 a" + ".0" * 32 + ": aliases make more than 20000 values or 32 levels"),
        ("a: " + "[" * 40 + "]" * 40, "ppo.yaml:1: not valid YAML: nested deeper than 32 levels"),
        (
            "seed: " + "9" * 5000,
            "ppo.yaml:1 seed: a number of more than 100 digits (got " + "9" * 77 + "...)",
        ),
        ('a: "\\ud800"', "ppo.yaml:1 a: half of a surrogate pair is no character"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            "ppo.yaml:1 a: tags are not allowed: a spec holds data and runs no code "
            "(got !!python/object/apply:os.system)",
        ),
        (
            "a: !mine b\n",
            "ppo.yaml:1 a: tags are not allowed: a spec holds data and runs no code (got !mine)",
        ),
    ],
)
def test_text_that_is_no_spec_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert faults(write_spec(tmp_path, text)) == [message]


def test_aliases_cannot_blow_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (message,) = faults(write_spec(tmp_path, "\n".join(lines)))
    assert message.endswith(": aliases make more than 20000 values or 32 levels")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: a\nsteps: \xff\n", "ppo.yaml:2: byte 0xff is not UTF-8\n  save it as UTF-8"),
        (
            b"\xef\xbb\xbfname: a\n",
            "ppo.yaml:1: the file begins with a byte order mark\n  save it as plain UTF-8",
        ),
        (
            "name: a\n".encode("utf-16"),
            "ppo.yaml:1: the file begins with a byte order mark\n  save it as plain UTF-8",
        ),
        (b"#" * (1 << 20) + b"\n", "ppo.yaml: larger than 1048576 bytes: not a spec"),
    ],
)
def test_bytes_that_are_no_plain_text_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_bytes(content)
    assert faults(path) == [message]


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert faults(tmp_path / "none.yaml") == ["none.yaml: there is no such file"]
    (tmp_path / "folder.yaml").mkdir()
    assert faults(tmp_path / "folder.yaml") == ["folder.yaml: cannot be read: Is a directory"]


def test_all_faults_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = SPEC.replace("steps: 10", "steps: 0").replace("path: model", "pth: model")
    text = text.replace("max_response_tokens: 8", "max_response_tokens: 8\n    temperature: -1")
    assert faults(write_spec(tmp_path, text)) == [
        "ppo.yaml:2 steps: must be a whole number from 1 to 1000000 (got 0)",
        "ppo.yaml:4 model.pth: unknown key\n  did you mean path?",
        "ppo.yaml:28 roles.rollout.temperature: must be a number above 0 and at most 10 (got -1)",
    ]


def test_numbers_and_words_follow_yaml_1_2(tmp_path: Path) -> None:
    spec = load(edited(tmp_path, "name: tiny", "name: no\nseed: 010"))
    assert spec.name == "no"
    assert spec.seed == 10
    assert spec.roles.actor.optimizer.learning_rate == 1e-4


def test_paths_are_seen_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with \"quotes\" and \u00fcnicode 'too'"
    text = SPEC.replace("path: model", "path: ../m o,d\u00e9l").replace("rewards.py", "./r w.py")
    spec = load(write_spec(folder, text))
    assert spec.model.path == str(tmp_path / "m o,d\u00e9l")
    assert spec.data.train == str(folder / "train.jsonl")
    assert spec.roles.reward.kind == "function"
    assert spec.roles.reward.function == f"{folder / 'r w.py'}:score"


def test_paths_of_overrides_are_seen_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = write_spec(tmp_path / "there")
    overrides = ["model={path: m}", "roles.reward.function=r.py:f", "roles.critic.model=~/c"]
    monkeypatch.setenv("HOME", "/home/someone")
    spec = load(path, overrides)
    assert spec.model.path == str(here / "m")
    assert spec.data.train == str(tmp_path / "there" / "train.jsonl")
    assert spec.roles.reward.kind == "function"
    assert spec.roles.reward.function == f"{here}/r.py:f"
    assert spec.roles.critic.model == "/home/someone/c"


def test_a_module_in_a_package_is_no_path(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "roles.reward.function=my_rewards.sums:score")
    assert spec.roles.reward.kind == "function"
    assert spec.roles.reward.function == "my_rewards.sums:score"


def test_overrides_replace_and_add_and_the_last_one_wins(tmp_path: Path) -> None:
    overrides = ["steps=5", "steps=7", "algorithm.kl.coefficient=1e-3", "name=two words"]
    spec = tiny_spec(tmp_path, *overrides)
    assert (spec.steps, spec.algorithm.kl.coefficient, spec.name) == (7, 1e-3, "two words")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "--set: must be key.path=value (got 'steps')"),
        ("=3", "--set: must be key.path=value (got '=3')"),
        ("steps=0", "--set steps: must be a whole number from 1 to 1000000 (got 0)"),
        ("steps=", "--set steps: must be a whole number from 1 to 1000000 (got nothing)"),
        ("steps=[", "--set steps: not valid YAML: expected the node content, but found '<stream end>'"),
        ("roles.rollout.gpus=1", "--set roles.rollout.gpus: unknown key\n  did you mean gpus_per_node?"),
        ("steps.a=1", "--set steps.a: steps is not a mapping"),
        (
            "name=!!python/name:os.system x",
            "--set name: tags are not allowed: a spec holds data and runs no code "
            "(got !!python/name:os.system)",
        ),
        (
            "algorithm.kl={coefficient: -1}",
            "--set algorithm.kl.coefficient: must be a number from 0 to 10 (got -1)",
        ),
    ],
)
def test_a_bad_override_is_named(tmp_path: Path, override: str, message: str) -> None:
    assert faults(write_spec(tmp_path), override) == [message]


def test_the_resolved_spec_holds_every_default_and_comes_back_equal(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, "roles.actor.optimizer.learning_rate=1e-7", 'name=n\u00e9 "q"')
    save(spec, tmp_path / "spec.json")
    assert load_resolved(tmp_path / "spec.json") == spec
    assert load(tmp_path / "spec.json") == spec
    content = json.loads((tmp_path / "spec.json").read_text(encoding="utf-8"))
    assert content["health"]["heartbeat_s"] == 5.0
    assert content["slurm"]["resources"]["rollout"] == {
        "cpus_per_rank": 1,
        "memory_gib_per_rank": 4.0,
        "partition": None,
        "constraint": None,
        "gpu_type": None,
    }


def test_a_resolved_spec_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    save(tiny_spec(tmp_path), path)
    path.write_text(path.read_text(encoding="utf-8").replace('"steps": 10', '"steps": "10"'))
    with pytest.raises(SpecErrors, match=r"spec\.json steps: not a resolved spec: Input should be"):
        load_resolved(path)
    with pytest.raises(SpecErrors, match="there is no such file"):
        load_resolved(tmp_path / "none.json")


def test_a_later_refusal_can_name_the_line_of_a_key(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    spec = load(path, ["seed=3"])
    assert spec.place("algorithm.minibatch_samples") == f"{path}:11 algorithm.minibatch_samples"
    assert spec.place("algorithm.epochs") == f"{path}:9 algorithm.epochs"
    assert spec.place("slurm.qos") == f"{path}:1 slurm.qos"
    assert spec.place("seed") == "--set seed"


def test_a_spec_is_frozen(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    with pytest.raises(ValidationError, match="frozen"):
        spec.steps = 3


def test_a_device_without_an_end_is_not_read_to_its_end() -> None:
    with pytest.raises(SpecErrors, match="/dev/zero: larger than 1048576 bytes: not a spec"):
        load(Path("/dev/zero"))
