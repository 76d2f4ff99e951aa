"""Tables and the progress bar: the only module that imports rich.

Never computes what it shows. Only `ProgressBar` writes to the terminal itself.
"""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from hpcflow.plan.plan import Component, Plan, RolePlan, TrainBatching, ranges

# Tables take the width that they need: a terminal breaks a long line, and nothing of it is lost.
WIDTH = 1000
# The run needs the cores more than the bar does.
REFRESH_HZ = 4


def plan_text(plan: Plan) -> str:
    """Role by role where it runs, the Slurm job that this becomes, then the batch sizes."""
    gpus = f"{plan.gpus_per_node} GPUs per node" if plan.gpus_per_node else "no GPU"
    title = f"{plan.name}: {plan.steps} steps on {_count(plan.nodes, 'node')}, {gpus}"
    route = plan.weights
    weights = f"weights: {route.sender} -> {route.receiver} by {route.backend}"
    warned = [f"warning: {sentence}" for sentence in plan.warnings]
    parts = [title, "", _roles(plan), *warned, weights, "", job_text(plan), _steps(plan), _batching(plan)]
    return "\n".join(parts)


def _roles(plan: Plan) -> str:
    table = _table("role", "nodes", "GPUs", "ranks", "CPUs per rank", "GiB per rank")
    for role in plan.roles:
        table.add_row(
            role.role,
            ranges(role.nodes),
            _gpu_sets(role),
            str(role.world_size),
            str(role.cpus_per_rank),
            f"{role.memory_gib_per_rank:g}",
        )
    return _text(table)


def placement_text(plan: Plan) -> str:
    """Role by role its nodes, GPU set and job step; then the shape of the Slurm job."""
    steps = {role: step.name for step in plan.job_steps for role in step.roles}
    table = _table("role", "nodes", "GPUs", "step")
    for role in plan.roles:
        table.add_row(role.role, ranges(role.nodes), _gpu_sets(role), steps[role.role])
    return "\n".join([_text(table), job_text(plan)])


def job_text(plan: Plan) -> str:
    """The Slurm job: its shape, why so and at what price, and what is asked of each component's nodes."""
    shape = plan.shape
    lines = [f"Slurm job: {shape.kind} ({shape.reason})", f"  price: {shape.price}"]
    columns = (
        "component",
        "nodes",
        "GPUs per node",
        "CPUs per node",
        "GiB per node",
        "kind of node",
        "roles",
    )
    table = _table(*columns)
    for number, component in enumerate(plan.components):
        table.add_row(
            str(number),
            ranges(component.nodes),
            str(component.gpus_per_node),
            str(component.cpus_per_node),
            _gibibytes(component.memory_mib_per_node),
            _kind(component),
            ", ".join(component.roles),
        )
    return "\n".join([*lines, "", _text(table)])


def _kind(component: Component) -> str:
    wanted = {
        "partition": component.partition,
        "constraint": component.constraint,
        "GPU type": component.gpu_type,
    }
    return ", ".join(f"{key} {value}" for key, value in wanted.items() if value is not None) or "any"


def _steps(plan: Plan) -> str:
    columns = ("step", "component", "nodes", "GPUs per node", "CPUs per node", "GiB per node")
    table = _table(*columns)
    for step in plan.job_steps:
        table.add_row(
            step.name,
            str(step.component),
            ranges(step.nodes),
            str(step.gpus_per_node),
            str(step.cpus_per_node),
            _gibibytes(step.memory_mib_per_node),
        )
    return _text(table)


def _gibibytes(mebibytes: int) -> str:
    return f"{mebibytes / 1024:.4g}"


def _gpu_sets(role: RolePlan) -> str:
    if role.device == "cpu":
        return "none (CPU)"
    nodes_of: dict[str, list[int]] = {}
    for node, gpus in zip(role.nodes, role.gpus_by_node, strict=True):
        nodes_of.setdefault(",".join(str(gpu) for gpu in gpus), []).append(node)
    named = [f"node {ranges(nodes)}: {gpus}" for gpus, nodes in nodes_of.items()]
    shown = next(iter(nodes_of)) if len(nodes_of) == 1 else "; ".join(named)
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
