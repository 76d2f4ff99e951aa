"""The worker side of a function reward: load the user's function, call it, judge what it returns.

Runs in processes that `reward_pool` spawns, never in the role itself: user code may raise, hang, crash or
print, and that costs the sample under way, not the role. Imports the standard library only, so that a
worker that replaces a killed one starts quickly. Workers ignore TERM, INT and USR2, which Slurm and
terminals send to every process of a step: the role decides when they leave, and ends them with KILL; when
the role dies they die with it.

The pool waits for a worker's chunk; a worker waits for nothing but its next chunk.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import numbers
import signal
import sys
import time
import traceback
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hpcflow.signals import die_with_parent

ScoreFunction = Callable[[str, str, dict[str, object]], object]
Outcome = tuple[float | None, str]

FLOAT32_MAX = 3.4028234e38
REASON_LENGTH = 300


@dataclass(frozen=True)
class Call:
    """One call of the user's function; `row` is the JSON text of the data row."""

    prompt: str
    response: str
    row: str


@dataclass
class _Worker:
    """What this process holds: the function, or why there is none; where it says what it is doing."""

    function: ScoreFunction | None = None
    fault: str = "the worker is not started"
    progress: MutableSequence[int] | None = None


_worker = _Worker()


class UnusableFunction(Exception):
    """The reference names nothing that can score."""


def start(reference: str, parent: int, progress: MutableSequence[int]) -> None:
    """Make this process a worker: tie it to `parent` (pid) and load the function; faults are kept."""
    die_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _worker.progress = progress
    try:
        _worker.function = load_function(reference)
        _worker.fault = ""
    except BaseException as error:  # also SystemExit: user code runs here, the verdict is `fault`
        _worker.fault = reason_of(error)


def fault() -> str:
    """Why the function cannot be used; empty when it can."""
    return _worker.fault


def score_chunk(slot: int, calls: Sequence[Call], timeout_s: float, box_s: float) -> list[Outcome]:
    """Score `calls` in order until `box_s` seconds are over; returns what was done, at least one.

    Before each call its index is written to `progress[slot]`, so that the pool knows which sample was
    under way when this process hung or died.
    """
    function, progress = _worker.function, _worker.progress
    assert function is not None, _worker.fault
    assert progress is not None
    outcomes: list[Outcome] = []
    began = time.monotonic()
    for index, call in enumerate(calls):
        progress[slot] = index
        call_began = time.monotonic()
        outcome = _score(function, call)
        now = time.monotonic()
        if now - call_began > timeout_s:
            outcome = (None, late(timeout_s))
        outcomes.append(outcome)
        if now - began > box_s:
            break
    return outcomes


def late(timeout_s: float) -> str:
    """The reason given for a sample that took too long, whether or not its worker was killed."""
    return f"the reward function took longer than {timeout_s:g} s"


def _score(function: ScoreFunction, call: Call) -> Outcome:
    try:
        return _judge(function(call.prompt, call.response, json.loads(call.row)))
    except BaseException as error:  # also SystemExit: whatever user code raises costs this sample only
        return (None, reason_of(error))


def _judge(value: object) -> Outcome:
    """Accept a real number that is finite in float32: no bool, which numbers.Real would let in."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return (None, f"the reward function returned a {type(value).__name__}, not a number")
    score = float(value)
    if not math.isfinite(score) or abs(score) > FLOAT32_MAX:
        return (None, f"the reward function returned {score:g}, which is not finite in float32")
    return (score, "")


def load_function(reference: str) -> ScoreFunction:
    """Import `file.py:function` or `package.module:function`; raises what the import raises.

    Raises `UnusableFunction` when the name is missing or cannot be called with (prompt, response, row).
    """
    place, _, name = reference.rpartition(":")
    module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    if name not in vars(module):
        raise UnusableFunction(f"{place} has no {name!r}")
    function = vars(module)[name]
    if not callable(function):
        raise UnusableFunction(f"{name!r} is a {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function):
        raise UnusableFunction(f"{name!r} is async; a reward function is a plain one")
    _check_signature(name, function)
    checked: ScoreFunction = function
    return checked


def _check_signature(name: str, function: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell; its first call will
        return
    try:
        signature.bind("prompt", "response", {})
    except TypeError as error:
        message = f"{name}{signature} cannot be called as {name}(prompt, response, row): {error}"
        raise UnusableFunction(message) from error


def _file_module(path: Path) -> ModuleType:
    """Import a file under a name of its own; its folder goes last on sys.path, so it shadows nothing."""
    if not path.is_file():
        raise UnusableFunction(f"there is no file {path}")
    name = "hpcflow_reward_function"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    sys.path.append(str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def reason_of(error: BaseException) -> str:
    """One line: type, message and the innermost place; printable whatever the message holds."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # a user's exception may not even print
        message = "(its message cannot be shown)"
    kind = "" if isinstance(error, UnusableFunction) else f"{type(error).__name__}: "
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if kind and frames else ""
    text = f"{kind}{message[:REASON_LENGTH]}{place}"
    return text.encode("utf-8", "backslashreplace").decode()
