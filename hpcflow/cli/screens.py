"""Plain text for people: the status screen, how a run ended, one line per step.

Functions of what was read; nothing is printed or looked up here. A figure that is not known is shown as "-".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hpcflow.observe.exit_report import CAUSES, ExitReport
from hpcflow.observe.metrics import Row, figure
from hpcflow.observe.signs import duration
from hpcflow.observe.slurm_look import SlurmLook, StepPlace
from hpcflow.observe.status import RunStatus
from hpcflow.signals import name_of

# The rate that time left is computed from: of so many last steps.
RATE_ROWS = 20


def status_text(status: RunStatus) -> str:
    """One screen on a run."""
    lines = [
        ("run", status.name),
        ("folder", status.path),
        ("state", state_line(status)),
        ("job", _job(status)),
        *(slurm_lines(status.slurm) if status.slurm else []),
        *_places(status.places),
        ("progress", _progress(status)),
        ("latest", _latest(status)),
        ("held-out", heldout_line(status)),
        ("checkpoint", _step(status.checkpoint_step)),
    ]
    shown = [f"{title:<11}{text}" for title, text in lines if text]
    ended = status.exit if not status.active else None
    return "\n".join([*shown, *(exit_lines(ended) if ended else [])])


def state_line(status: RunStatus) -> str:
    """State, what it does or why it is so, and how old that knowledge is."""
    text: str = status.state
    if status.reason:
        return f"{text}: {status.reason}"
    if status.phase:
        text += f": {status.phase}"
    if status.active and status.age_s is not None:
        text += f", last sign of life {duration(status.age_s)} ago"
    return text


def _job(status: RunStatus) -> str:
    if status.job_id is None:
        return ""
    attempt = f", attempt {status.attempt}" if status.attempt else ""
    return f"{status.executor} {status.job_id}{attempt}"


def slurm_lines(look: SlurmLook) -> list[tuple[str, str]]:
    """What Slurm says of the job, and of the components where it has several."""
    if not look.known:
        return []
    told = _slurm_state(look.state, look.reason, look.nodes)
    if look.unanswered:
        told += f", as of {_time(look.asked)}"
    elif look.waits and look.start is not None:
        told += f", estimated start {_time(look.start)}"
    if len(look.components) < 2:
        return [("slurm", told)]
    parts = [
        (
            f"  het {number}",
            f"{_slurm_state(part.state, part.reason, part.nodes)}, {_nodes(part.node_count)}",
        )
        for number, part in enumerate(look.components)
    ]
    return [("slurm", told), *parts]


def _slurm_state(state: str, reason: str, nodes: str) -> str:
    where = f" on {nodes}" if nodes else ""
    return f"{state}{where}" if reason in ("", "None") else f"{state}{where} ({reason})"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _places(places: Sequence[StepPlace]) -> list[tuple[str, str]]:
    """Which roles are in which step, and on which nodes it is or will be."""
    width = max((len(place.name) for place in places), default=0)
    lines = [f"{place.name:<{width}}  on {place.nodes or _nodes(place.node_count)}" for place in places]
    return [("steps" if number == 0 else " ", line) for number, line in enumerate(lines)]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _progress(status: RunStatus) -> str:
    return "" if status.steps is None else f"step {status.step} of {status.steps}"


def _latest(status: RunStatus) -> str:
    if status.reward is None:
        return ""
    speed = _number(status.tokens_per_second, ".0f")
    return f"reward {_number(status.reward)}  KL {_number(status.kl)}  {speed} tokens/s"


def heldout_line(status: RunStatus) -> str:
    """Held-out score before training and at the last evaluation."""
    if status.heldout_before is None:
        return ""
    return f"{status.heldout_before:.3f} before, {_number(status.heldout, '.3f')} {_when(status)}"


def _when(status: RunStatus) -> str:
    return "after" if status.state == "done" else "at the last evaluation"


def exit_lines(report: ExitReport) -> list[str]:
    """Who ended an attempt, what happened, why, and what to do; [] for one that is done."""
    if report.outcome == "done":
        return []
    if report.outcome == "stopped":
        known = CAUSES.get(report.cause, "")
        return [f"{'why':<11}{known if report.message == report.cause else report.message}"]
    who = report.role if report.rank < 0 else f"{report.role}.{report.rank}"
    lines = [
        ("who", f"{who} on {report.host}"),
        ("what", _ended(report)),
        ("why", f"{report.cause}: {report.message}"),
        ("to do", report.hint),
        ("log", report.log),
    ]
    return [f"{title:<11}{text}" for title, text in lines if text]


def _ended(report: ExitReport) -> str:
    when = "before the first step" if report.step is None else f"at step {report.step}"
    if report.signal is not None:
        return f"ended by {name_of(report.signal)} {when}"
    if report.exit_code is not None:
        return f"ended with exit code {report.exit_code} {when}"
    return f"{report.outcome} {when}"


def metrics_line(row: Row, steps: int) -> str:
    """One plain line on one training step."""
    figures = [("loss", "loss"), ("reward", "reward"), ("KL", "kl"), ("grad norm", "grad_norm")]
    parts = [f"{title} {_number(figure(row, key))}" for title, key in figures]
    return "  ".join([f"step {row['step']}/{steps}", *parts])


def time_left(rows: Sequence[Row], steps: int) -> float | None:
    """Seconds to the last step, at the rate of the last steps; None while no rate is known."""
    recent = rows[-RATE_ROWS:]
    if len(recent) < 2:
        return None
    done = recent[-1]["step"] - recent[0]["step"]
    took = recent[-1]["time"] - recent[0]["time"]
    return (steps - recent[-1]["step"]) * took / done if done > 0 else None


def bar_figures(status: RunStatus, rows: Sequence[Row]) -> str:
    """What stands beside the bar."""
    if status.steps is None or not rows:
        return ""
    row = rows[-1]
    left = time_left(rows, status.steps)
    parts = [
        f"{row['step']}/{status.steps}",
        f"reward {_number(figure(row, 'reward'), '.3f')}",
        f"KL {_number(figure(row, 'kl'), '.4f')}",
        f"{_number(figure(row, 'tokens_per_second'), '.0f')} tokens/s",
    ]
    return "  ".join(parts if left is None else [*parts, f"{duration(left)} left"])


def number(row: Row, key: str, form: str = ".4g") -> str:
    """A figure of a row as text."""
    return _number(figure(row, key), form)


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def _step(step: int | None) -> str:
    return "" if step is None else f"step {step}"
