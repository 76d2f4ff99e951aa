"""A small valid spec as text, and specs made from it, for tests that need no real files."""

from __future__ import annotations

from pathlib import Path

from hpcflow.spec.load import load
from hpcflow.spec.run import RunSpec

SPEC = """\
name: tiny
steps: 10
model:
  path: model
data:
  train: train.jsonl
  heldout: heldout.jsonl
  max_prompt_tokens: 8
algorithm:
  prompts_per_step: 8
  minibatch_samples: 4
roles:
  actor:
    microbatch_per_gpu: 2
    optimizer:
      learning_rate: 1e-4
  critic:
    microbatch_per_gpu: 4
    optimizer:
      learning_rate: 1e-4
  reference:
    microbatch_per_gpu: 4
  reward:
    kind: function
    function: rewards.py:score
  rollout:
    max_response_tokens: 8
"""


def write_spec(folder: Path, text: str = SPEC, *, name: str = "ppo.yaml") -> Path:
    """Write the text of a spec; its folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def tiny_spec(folder: Path, *overrides: str) -> RunSpec:
    """The small spec with overrides, loaded from `folder`."""
    return load(write_spec(folder), overrides)


def complete_spec(folder: Path) -> Path:
    """The small spec with all files that it names; its model folder has no weights."""
    path = write_spec(folder, SPEC.replace("path: model", "path: model\n  random_weights: true"))
    model = folder / "model"
    model.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    (folder / "rewards.py").write_text("def score(prompt, response, row):\n    return 1.0\n")
    for name in ("train", "heldout"):
        (folder / f"{name}.jsonl").write_text('{"prompt": "a"}\n')
    return path
