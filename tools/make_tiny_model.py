"""Make the demo's small model, its data and, if asked, its reward model: all from a seed, nothing downloaded.

    python tools/make_tiny_model.py --out .demo [--seed 0] [--task sums] [--reward-model]

Writes `<task>-model/`, `data/train.jsonl`, `data/heldout.jsonl` and `<task>-reward-model/` into the folder,
each by rename. A part whose stamp matches is left alone: a second run takes no time and imports no torch.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from demo_tasks import TASKS, Problem, Split

STAMP = ".stamp.json"


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
    _make(out / "data", _key(sources, task, seed), lambda folder: _write_data(split, folder))
    sources.append(Path(__file__).with_name("tiny_model.py"))
    _make(policy, _key(sources, task, seed), write_policy)
    if options.reward_model:
        sources.append(Path(__file__).with_name("tiny_reward_model.py"))
        _make(out / f"{task}-reward-model", _key(sources, task, seed), write_reward_model)
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


def _make(target: Path, key: str, write: Callable[[Path], None]) -> None:
    """Fill `target` by `write` unless it is whole and was made under `key`."""
    if _is_whole(target, key):
        _say(f"{target}: up to date")
        return
    _say(f"{target}: making it")
    started = time.monotonic()
    with _replaced(target) as folder:
        write(folder)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        (folder / STAMP).write_text(json.dumps({"key": key, "sizes": sizes}), encoding="utf-8")
    _say(f"{target}: done in {time.monotonic() - started:.0f} s")


def _key(sources: list[Path], *parameters: str | int) -> str:
    """Hash of the parameters and of the code that uses them."""
    digest = hashlib.sha256(json.dumps(parameters).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_whole(target: Path, key: str) -> bool:
    try:
        stamp = json.loads((target / STAMP).read_text(encoding="utf-8"))
        return stamp["key"] == key and all(
            (target / name).stat().st_size == size for name, size in stamp["sizes"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `target` at the end, and is removed on any error."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, old = scratch / "fresh", scratch / "old"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
    finally:
        shutil.rmtree(scratch)


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
