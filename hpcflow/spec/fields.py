"""Field types and the base model that every part of the spec shares: strict, bounded, frozen.

Strictness refuses booleans where numbers belong, NaN, infinities and unknown keys; upper bounds
refuse typing slips such as a learning rate of 5 or a step count of 10**12. Rules that span several
keys are raised as one `refusal`, whose faults name their key relative to the model that found them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

_NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"


class Model(BaseModel):
    """A part of the spec: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Rule(NamedTuple):
    """A broken rule between keys; `key` is dotted, and relative to the model that states it."""

    key: str
    problem: str
    hint: str = ""


def refusal(rules: Sequence[Rule]) -> PydanticCustomError:
    """The error that a model validator raises for all the rules it found broken."""
    return PydanticCustomError("rules", "rules between keys are broken", {"rules": list(rules)})


class CommandLineText(str):
    """A text given by `--set`: a path is then seen from the current folder, not the spec's."""

    __slots__ = ()


def _absolute(value: str, info: ValidationInfo) -> str:
    """Make a path absolute, seen from the folder of the spec file (validation context `folder`).

    Without that context (the resolved `spec.json`) the path is kept as it is.
    """
    if not info.context or not value.isprintable():
        return value
    folder = Path.cwd() if isinstance(value, CommandLineText) else Path(info.context["folder"])
    try:
        return str((folder / Path(value).expanduser()).resolve())
    except RuntimeError as error:  # ~name of a user who does not exist, or a loop of links
        raise refusal([Rule("", f"the path cannot be resolved: {error}")]) from None


def _resolve_path(value: object, info: ValidationInfo) -> object:
    return _absolute(value, info) if isinstance(value, str) and value else value


def _resolve_function(value: object, info: ValidationInfo) -> object:
    """Make the file of `file.py:function` absolute; `package.module:function` stays."""
    if not isinstance(value, str):
        return value
    place, colon, name = value.rpartition(":")
    if not place.endswith(".py"):
        return value
    located = CommandLineText(place) if isinstance(value, CommandLineText) else place
    return f"{_absolute(located, info)}{colon}{name}"


def _only_whole(value: object) -> object:
    """Keep `true` and `1.0` from equalling 1 in a Literal of numbers."""
    if type(value) is not int:
        raise PydanticCustomError("int_type", "must be a whole number")
    return value


WholeNumber = BeforeValidator(_only_whole)
FilePath = Annotated[
    str, StringConstraints(min_length=1, pattern=_NO_CONTROL), BeforeValidator(_resolve_path)
]
FunctionLocation = Annotated[
    str,
    Field(
        pattern=r"^([^\x00-\x1f]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_]\w*$",
        description="file.py:function or package.module:function",
    ),
    BeforeValidator(_resolve_function),
]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_NO_CONTROL)]

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Index = Annotated[int, Field(ge=0, le=1_000_000_000)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Gpus = Annotated[int, Field(ge=0, le=64)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Gibibytes = Annotated[float, Field(gt=0, le=4096)]
LearningRate = Annotated[float, Field(ge=0, le=1)]
