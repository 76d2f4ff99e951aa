"""Time submission on a private Slurm cluster: `hpcflow submit` beside a plain `sbatch`, first step, planner.

    tools/bench --slurm [--repeats 5]

Brings up four nodes with fake GPUs (tools/slurm_up) and takes them down again. Submissions alternate with
plain ones in one run, so that their difference stands for any machine. Planning needs no cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcflow.plan.build import build
from hpcflow.spec.load import load

TOOLS = Path(__file__).resolve().parent
CONFIG = TOOLS.parent / "configs" / "ppo.yaml"
LIMIT_S = 300
POLL_S = 0.2
NODES, GPUS = {"actor": 512, "critic": 256, "rollout": 256}, 8
ROLES = (
    *("device=cpu", "slurm.shape=steps", "slurm.gpus_per_node=2", "slurm.time_minutes=10"),
    *("roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2", "roles.actor.microbatch_per_gpu=64"),
    *("roles.critic.gpus_per_node=1", "roles.rollout.gpus_per_node=1"),
    *("roles.reference.gpus_per_node=1", "roles.reference.share_with=actor"),
    *("roles.reward.gpus_per_node=1", "roles.reward.share_with=actor"),
    *(f"slurm.resources.{role}.memory_gib_per_rank=1.25" for role in ("actor", "critic", "reference")),
    *("slurm.resources.reward.memory_gib_per_rank=0.5", "slurm.resources.rollout.memory_gib_per_rank=2.5"),
    *("slurm.driver.memory_gib_per_rank=1.25", "steps=2", "evaluation.prompts=16"),
    *(f"roles.{role}.optimizer.warmup_steps=0" for role in ("actor", "critic")),
)


def main() -> int:
    """Measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(description="Time submission on a private Slurm cluster.")
    parser.add_argument("--repeats", type=int, default=5, help="submissions of each kind (default: 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hb-") as scratch:
        with private_cluster(Path(scratch) / "c") as environment:
            # The first pair fills caches.
            _, *pairs = [
                submissions(Path(scratch), environment, number) for number in range(1 + options.repeats)
            ]
            first_step_s = first_step(Path(scratch) / "first", environment)
        planner_s = {shape: planning(shape) for shape in ("steps", "hetjob")}
    print(table(pairs, first_step_s, planner_s))
    return 0


@contextmanager
def private_cluster(root: Path) -> Iterator[dict[str, str]]:
    """The environment in which commands reach a cluster of our own."""
    try:
        answer = subprocess.run(
            [TOOLS / "slurm_up", "--root", root, "--json"],
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        # Some environments keep Python from caching what it compiled, which a user's does not.
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        yield {**plain, "SLURM_CONF": json.loads(answer.stdout)["slurm_conf"]}
    finally:
        subprocess.run([TOOLS / "slurm_down", "--root", root], check=True, timeout=LIMIT_S)


def submissions(folder: Path, environment: dict[str, str], number: int) -> tuple[float, float]:
    """Seconds of one plain `sbatch` and of one `hpcflow submit`; both jobs are held, then cancelled."""
    script = folder / "plain.sh"
    script.write_text("#!/bin/bash\nsleep 1\n")
    plain = ["sbatch", "--parsable", "--hold", f"--output={folder}/plain.log", str(script)]
    ours = _submit(folder / f"held-{number}", "slurm.options.hold=true")
    times = []
    for command in (plain, ours):
        started = time.monotonic()
        subprocess.run(
            command, check=True, env=environment, stdout=subprocess.DEVNULL, cwd=folder, timeout=LIMIT_S
        )
        times.append(time.monotonic() - started)
    subprocess.run(["scancel", "--me"], check=True, env=environment, timeout=LIMIT_S)
    return times[0], times[1]


def first_step(run: Path, environment: dict[str, str]) -> float:
    """Seconds from `hpcflow submit` to the end of step 1.

    Raises:
        SystemExit: the run did not end well; its exit report is shown.
    """
    started = time.time()
    subprocess.run(_submit(run), check=True, env=environment, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    exit_json = run / "attempt_1" / "exit.json"
    while not exit_json.exists():
        if time.time() - started > LIMIT_S:
            raise SystemExit(f"the run was not over after {LIMIT_S} s")
        time.sleep(POLL_S)
    report = json.loads(exit_json.read_text())
    if report["outcome"] != "done":
        raise SystemExit(f"the run ended {report['outcome']}:\n{json.dumps(report, indent=2)}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first: float = next(row["time"] for row in rows if row["kind"] == "train")
    return first - started


def planning(shape: str) -> float:
    """Seconds to plan 1,024 nodes of eight GPUs, a rank on each."""
    roles = [
        f"roles.{role}.{key}"
        for role, count in NODES.items()
        for key in (f"nodes={count}", f"gpus_per_node={GPUS}", f"ranks_per_node={GPUS}")
    ]
    batch = [f"algorithm.{key}=4096" for key in ("prompts_per_step", "minibatch_samples")]
    micro = [f"roles.{role}.microbatch_per_gpu=1" for role in ("actor", "critic")]
    warm = [f"roles.{role}.optimizer.warmup_steps=0" for role in ("actor", "critic")]
    cluster = ["communication.collectives=nccl", f"slurm.gpus_per_node={GPUS}", f"slurm.shape={shape}"]
    spec = load(CONFIG, [*roles, *batch, *micro, *warm, *cluster])
    started = time.monotonic()
    plan = build(spec)
    assert plan.nodes == sum(NODES.values())
    return time.monotonic() - started


def table(pairs: Sequence[tuple[float, float]], first_step_s: float, planner_s: dict[str, float]) -> str:
    """The measurements as text."""
    plain_s = statistics.median(plain for plain, _ in pairs)
    ours_s = statistics.median(ours for _, ours in pairs)
    more_s = statistics.median(ours - plain for plain, ours in pairs)
    lines = [
        f"plain sbatch (median of {len(pairs)})              {plain_s:8.2f} s",
        f"hpcflow submit (median of {len(pairs)})            {ours_s:8.2f} s",
        f"hpcflow submit takes more                {more_s:8.2f} s  (goal: under 1 s)",
        f"submit to the end of step 1, as steps    {first_step_s:8.2f} s",
    ]
    lines += [
        f"planning {sum(NODES.values())} nodes, {shape:<8}             {seconds:8.2f} s  (goal: under 1 s)"
        for shape, seconds in planner_s.items()
    ]
    return "\n".join(lines)


def _submit(run: Path, *more: str) -> list[str]:
    settings = [f"--set={override}" for override in (*ROLES, *more)]
    command = [sys.executable, "-m", "hpcflow", "submit", str(CONFIG), "--cluster", "slurm"]
    return [*command, "--run-dir", str(run), *settings]


if __name__ == "__main__":
    sys.exit(main())
