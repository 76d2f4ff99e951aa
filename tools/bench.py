"""Time a run: seconds to the first step, a step by phase, the driver's overhead, `hpcflow submit` itself.

    tools/bench [SPEC] [--steps 40] [--set key=value ...]

Runs the spec (default: the demo) with the local executor in a folder of its own, then prints what the run's
own metrics say. Times are those of this machine at this moment; compare ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_S = 0.5
PHASES = ("generate", "judge", "update", "weights")


@dataclass
class GpuMemory:
    """Peak memory of the visible GPUs in MiB, by polling nvidia-smi; empty where there is none."""

    peak_mib: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Take one sample."""
        try:
            reply = subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return
        used = [int(line) for line in reply.stdout.split()]
        before = self.peak_mib or used
        self.peak_mib = [max(pair) for pair in zip(before, used, strict=True)]


@dataclass(frozen=True)
class Timing:
    """What was measured of one run."""

    submit_s: float
    first_step_s: float
    rows: list[dict[str, Any]]
    resident: dict[str, int]
    gpu: GpuMemory


def main() -> int:
    """Run, measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(description="Time a run with the local executor.")
    parser.add_argument("spec", nargs="?", default="configs/ppo.yaml", help="spec file")
    parser.add_argument("--steps", type=int, default=40, help="training steps (default: 40)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="run folder to keep (default: a temporary one)")
    options = parser.parse_args()
    overrides = [f"steps={options.steps}", *options.overrides]
    with tempfile.TemporaryDirectory(prefix="hpcflow-bench-") as scratch:
        run = options.keep or Path(scratch) / "bench"
        timing = measure(options.spec, run, overrides)
    print(table(timing))
    return 0


def measure(spec: str, run: Path, overrides: Sequence[str]) -> Timing:
    """Submit, wait for the end, and read the run's files.

    Raises:
        SystemExit: the run did not end well; its exit report is shown.
    """
    command = [sys.executable, "-m", "hpcflow", "submit", spec, "--cluster", "local"]
    command += ["--run-dir", str(run), *(f"--set={override}" for override in overrides)]
    started = time.time()
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=300)
    submit_s = time.time() - started
    gpu = GpuMemory()
    exit_json = run / "attempt_1" / "exit.json"
    while not exit_json.exists():
        gpu.look()
        time.sleep(POLL_S)
    report = json.loads(exit_json.read_text())
    if report["outcome"] != "done":
        raise SystemExit(f"the run ended {report['outcome']}:\n{json.dumps(report, indent=2)}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    resident = {
        name: max(row["resident_bytes"][name] for row in train) for name in train[0]["resident_bytes"]
    }
    return Timing(submit_s, train[0]["time"] - started, train, resident, gpu)


def table(timing: Timing) -> str:
    """The measurements as text. The first step is left out of the phases: it warms caches up."""
    steady = timing.rows[1:] or timing.rows
    step_s = _median(steady, "step")
    lines = [
        f"hpcflow submit returns after      {timing.submit_s:8.2f} s",
        f"submit to the end of step 1       {timing.first_step_s:8.2f} s",
        f"one step (median of {len(steady):3d})         {step_s:8.3f} s",
    ]
    for phase in PHASES:
        seconds = _median(steady, phase)
        lines.append(f"  {phase:<10}                      {seconds:8.3f} s  {seconds / step_s:6.1%}")
    driver_s = _median(steady, "driver")
    lines.append(
        f"  driver overhead                 {driver_s:8.3f} s  {driver_s / step_s:6.1%}  (goal: under 5%)"
    )
    tokens = statistics.median(row["tokens_per_second"] for row in steady)
    drift = max(row["rollout_logprob_difference"] for row in steady)
    mean_drift = statistics.mean(row["rollout_logprob_difference_mean"] for row in steady)
    lines.append(f"response tokens a second          {tokens:8.0f}")
    lines.append(f"vLLM-trainer logprob difference   {drift:8.2e} largest, {mean_drift:.2e} mean")
    for name, size in sorted(timing.resident.items()):
        lines.append(f"peak resident memory {name:<12} {size / 2**20:8.0f} MiB")
    for index, used in enumerate(timing.gpu.peak_mib):
        lines.append(f"peak memory of GPU {index}              {used:8d} MiB")
    return "\n".join(lines)


def _median(rows: Sequence[dict[str, Any]], phase: str) -> float:
    return float(statistics.median(row["seconds"][phase] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
