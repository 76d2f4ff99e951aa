"""Does PPO learn, and only for the right reason? The demo over seeds, with controls and mutations.

    tools/learn [--seeds 0 1 2] [--cases CASE ...] [--out runs/learn] [--set key=value ...]

Every seed has a model and a split of its own. A control is a run that has nothing to learn from; a mutation
runs on a copy of the package with one line changed. What was finished is not run again, and a run that was
interrupted is resumed, so the command can be given again after any end. Exit code 1 where a case is not as
expected. Never changes the package itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blind_reward import mark_heldout

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = REPOSITORY / "configs" / "ppo.yaml"
BLIND_REWARD = REPOSITORY / "tools" / "blind_reward.py"
LEARNS, RISES_BY_CHANCE = 0.30, 0.05
POLL_S = 1.0


@dataclass(frozen=True)
class Mutation:
    """One line of the package, replaced."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Case:
    """A run of the demo, and whether the held-out score must rise by `LEARNS` or stay below chance."""

    learns: bool
    overrides: tuple[str, ...] = ()
    mutation: Mutation | None = None


LOSSES = "hpcflow/algorithms/losses.py"
ADVANTAGES = "advantages_BT = select(advantages_BT.detach(), mask_BT)"
CASES = {
    "ppo": Case(learns=True),
    "random-reward": Case(learns=False, overrides=(f"roles.reward.function={BLIND_REWARD}:score",)),
    "frozen-actor": Case(learns=False, overrides=("roles.actor.optimizer.learning_rate=0.0", "steps=20")),
    "wrong-sign": Case(
        learns=False,
        mutation=Mutation(LOSSES, ADVANTAGES, ADVANTAGES.replace("select(", "-select(")),
    ),
    "advantages-of-others": Case(
        learns=False,
        mutation=Mutation(LOSSES, ADVANTAGES, ADVANTAGES.replace(".detach()", ".detach().roll(1, 0)")),
    ),
}


def main() -> int:
    """Run what is missing, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description="Seeds, controls and mutations of the demo, as one table.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "runs" / "learn", help="kept, and resumed from"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    options = parser.parse_args()
    out = options.out.resolve()
    lines, good = [], True
    for seed in options.seeds:
        demo = make_demo(out / f"seed_{seed}" / "demo", seed)
        for name in options.cases:
            overrides = [*_of_seed(seed, demo), *options.overrides, *CASES[name].overrides]
            before, after = scores(run_case(out / f"seed_{seed}" / name, CASES[name], overrides))
            as_expected = (
                after - before >= LEARNS if CASES[name].learns else after - before <= RISES_BY_CHANCE
            )
            good = good and as_expected
            lines.append(_line(seed, name, before, after, as_expected))
            print(lines[-1], flush=True)
    print("\n".join(["", f"{'seed':>4}  {'case':<22}{'before':>8}{'after':>8}{'gain':>8}", *lines]))
    return 0 if good else 1


def _line(seed: int, name: str, before: float, after: float, as_expected: bool) -> str:
    wanted = f">= {LEARNS:+.2f}" if CASES[name].learns else f"<= {RISES_BY_CHANCE:+.2f}"
    verdict = "as expected" if as_expected else "NOT AS EXPECTED"
    return f"{seed:>4}  {name:<22}{before:>8.3f}{after:>8.3f}{after - before:>+8.3f}  {wanted}: {verdict}"


def _of_seed(seed: int, demo: Path) -> list[str]:
    data = demo / "data"
    heldout = mark_heldout(data / "heldout.jsonl", demo / "heldout.jsonl")
    files = [f"data.train={data / 'train.jsonl'}", f"data.heldout={heldout}"]
    return [f"seed={seed}", f"model.path={demo / 'sums-model'}", *files, "evaluation.prompts=492"]


def make_demo(folder: Path, seed: int) -> Path:
    """Model and data of a seed; made once."""
    script = str(REPOSITORY / "tools" / "make_tiny_model.py")
    command = [sys.executable, script, "--out", str(folder), "--seed", str(seed)]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=900)
    return folder


def run_case(run: Path, case: Case, overrides: list[str]) -> Path:
    """Bring a run to its end, from wherever an earlier call left it.

    Raises:
        SystemExit: it failed; its exit report says why.
    """
    while (report := newest_report(run)) is None or report["outcome"] != "done":
        if report is not None and report["outcome"] == "failed" and report["cause"] != "supervisor_lost":
            raise SystemExit(f"{run} failed: {report['message']}\nremove it to start it anew")
        attempts = len(list(run.glob("attempt_*")))
        if not _lives(run):
            command = ["resume", str(run)] if attempts else _submit(run, overrides)
            # The folder from which Python is started comes first on its path, in all processes of the run.
            package = REPOSITORY if case.mutation is None else mutated(run, case.mutation)
            subprocess.run(
                [sys.executable, "-m", "hpcflow", *command],
                check=True,
                cwd=package,
                stdout=sys.stderr,
                timeout=300,
            )
        while _lives(run):
            time.sleep(POLL_S)
    return run


def _submit(run: Path, overrides: list[str]) -> list[str]:
    settings = [f"--set={override}" for override in overrides]
    return ["submit", str(CONFIG), "--cluster", "local", "--run-dir", str(run), *settings]


def _lives(run: Path) -> bool:
    """Whether the run waits, starts or runs; as the command line says."""
    if not (run / "job.json").exists():
        return False
    command = [sys.executable, "-m", "hpcflow", "status", str(run), "--json"]
    reply = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    state: str = json.loads(reply.stdout)["state"]
    return state in ("queued", "starting", "running")


def mutated(run: Path, mutation: Mutation) -> Path:
    """A folder beside the run with a copy of the package in which one line is changed."""
    copy = run.with_name(f"{run.name}.package")
    shutil.rmtree(copy, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("hpcflow", "sbatch"):
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=ignored)
    target = copy / mutation.file
    text = target.read_text()
    assert text.count(mutation.old) == 1, f"{mutation.old!r} is not once in {target}"
    target.write_text(text.replace(mutation.old, mutation.new))
    return copy


def newest_report(run: Path) -> dict[str, Any] | None:
    """The exit report of the newest attempt; None where it has none."""
    attempts = sorted(run.glob("attempt_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    file = attempts[-1] / "exit.json" if attempts else None
    return json.loads(file.read_text()) if file is not None and file.exists() else None


def scores(run: Path) -> tuple[float, float]:
    """Held-out score before and after."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    heldout = {row["step"]: float(row["score"]) for row in rows if row["kind"] == "heldout"}
    return heldout[0], heldout[max(heldout)]


if __name__ == "__main__":
    sys.exit(main())
