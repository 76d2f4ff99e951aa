"""Make the demo's small model, its data and, if asked, its reward model: all from a seed, nothing downloaded.

    python tools/make_tiny_model.py --out .demo [--seed 0] [--task sums] [--reward-model]

Writes `<task>-model/`, `data/train.jsonl`, `data/heldout.jsonl` and `<task>-reward-model/` into the folder,
each by rename. A part whose stamp matches is left alone: a second run takes no time and imports no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from demo_tasks import TASKS, Problem, Split
from stamped_folder import key_of, make


def main(arguments: list[str] | None = None) -> int:
    """Make what is missing; return the exit code."""
    options = _parse(arguments)
    out, task, seed = options.out, options.task, options.seed
    out.mkdir(parents=True, exist_ok=True)
    split = TASKS[task](seed=seed)
    policy = out / f"{task}-model"

    def write_policy(folder: Path) -> None:
        from tiny_model import WarmUp, make_policy

        make_policy(split, folder, seed=seed, plan=WarmUp(), say=_say)

    def write_reward_model(folder: Path) -> None:
        from tiny_reward_model import RewardTraining, make_reward_model

        make_reward_model(split, policy, folder, seed=seed, plan=RewardTraining(), say=_say)

    sources = [Path(__file__), Path(__file__).with_name("demo_tasks.py")]
    make(out / "data", key_of(sources, task, seed), lambda folder: _write_data(split, folder), say=_say)
    sources.append(Path(__file__).with_name("tiny_model.py"))
    make(policy, key_of(sources, task, seed), write_policy, say=_say)
    if options.reward_model:
        sources.append(Path(__file__).with_name("tiny_reward_model.py"))
        make(out / f"{task}-reward-model", key_of(sources, task, seed), write_reward_model, say=_say)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the demo's small model, data and reward model.")
    parser.add_argument(
        "--out", type=Path, default=Path(".demo"), help="folder to write into (default: .demo)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the split, the weights and the warm-up")
    parser.add_argument("--task", choices=sorted(TASKS), default="sums", help="kind of problems")
    parser.add_argument("--reward-model", action="store_true", help="also train the reward model")
    return parser.parse_args(arguments)


def _write_data(split: Split, folder: Path) -> None:
    for name, problems in (("train", split.train), ("heldout", split.heldout)):
        (folder / f"{name}.jsonl").write_text("".join(map(_line, problems)), encoding="utf-8")
        _say(f"  {name}.jsonl: {len(problems)} problems")


def _line(problem: Problem) -> str:
    return json.dumps({"prompt": problem.prompt, "answer": problem.answer}) + "\n"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
