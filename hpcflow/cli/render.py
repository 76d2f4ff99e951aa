"""Tables and the progress bar: the only module that imports rich.

Never computes what it shows. Only `ProgressBar` writes to the terminal itself.
"""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from hpcflow.plan.plan import Plan, RolePlan, TrainBatching

WIDTH = 110
# The run needs the cores more than the bar does.
REFRESH_HZ = 4


def plan_text(plan: Plan) -> str:
    """Role by role where it runs, then the batch sizes."""
    gpus = f"{plan.gpus_per_node} GPUs per node" if plan.gpus_per_node else "no GPU"
    title = f"{plan.name}: {plan.steps} steps on {_count(plan.nodes, 'node')}, {gpus}"
    route = plan.weights
    weights = f"weights: {route.sender} -> {route.receiver} by {route.backend}"
    warned = [f"warning: {sentence}" for sentence in plan.warnings]
    return "\n".join([title, "", _roles(plan), *warned, weights, "", _batching(plan)])


def _roles(plan: Plan) -> str:
    table = _table("role", "nodes", "GPUs", "ranks", "CPUs per rank", "GiB per rank")
    for role in plan.roles:
        table.add_row(
            role.role,
            ",".join(str(node) for node in role.nodes),
            _gpu_sets(role),
            str(role.world_size),
            str(role.cpus_per_rank),
            f"{role.memory_gib_per_rank:g}",
        )
    return _text(table)


def _gpu_sets(role: RolePlan) -> str:
    if role.device == "cpu":
        return "none (CPU)"
    sets = [",".join(str(gpu) for gpu in gpus) for gpus in role.gpus_by_node]
    named = [f"node {node}: {gpus}" for node, gpus in zip(role.nodes, sets, strict=True)]
    shown = sets[0] if len(sets) == 1 else "; ".join(named)
    return shown if role.shares_with is None else f"{shown} (shared with {role.shares_with})"


def _batching(plan: Plan) -> str:
    sizes = plan.batching
    table = _table("per step", "actor", "critic", "unit")
    both: list[tuple[str, int, str]] = [
        ("prompts_per_step", sizes.prompts_per_step, "prompts"),
        ("samples_per_prompt", sizes.samples_per_prompt, "samples"),
        ("samples_per_step", sizes.samples_per_step, "samples, all ranks"),
        ("epochs", sizes.epochs, "passes over the samples"),
        ("max_sequence_tokens", sizes.max_sequence_tokens, "tokens, prompt and response"),
    ]
    for name, value, unit in both:
        table.add_row(name, str(value), str(value), unit)
    for name, unit in _TRAIN_ROWS:
        table.add_row(name, _size(sizes.actor, name), _size(sizes.critic, name), unit)
    return _text(table)


_TRAIN_ROWS = (
    ("minibatch_samples", "samples, all ranks"),
    ("rank_minibatch_samples", "samples, one rank"),
    ("microbatch_per_gpu", "samples, one rank at a time"),
    ("accumulation", "micro-batches per optimizer step"),
    ("optimizer_steps_per_step", "optimizer steps"),
    ("optimizer_steps_total", "optimizer steps, whole run"),
)


def _size(sizes: TrainBatching, name: str) -> str:
    fields: dict[str, int] = sizes.__dict__
    return str(fields[name])


class ProgressBar:
    """A bar with step, reward, KL, tokens/s and time left, at the bottom of a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(markup=False, highlight=False, emoji=False)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self._console,
            transient=True,
            refresh_per_second=REFRESH_HZ,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")
        self._progress.start()

    def show(self, text: str, *, step: int, steps: int | None, figures: str) -> None:
        """Replace what the bar says."""
        self._progress.update(self._task, description=text, completed=step, total=steps, figures=figures)

    def line(self, text: str) -> None:
        """A line above the bar that stays."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
        self._progress.stop()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _text(table: Table) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDTH, color_system=None, markup=False, highlight=False, emoji=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
