"""Write docs/reference/spec.md: every key of a spec with type, bounds, default and meaning.

    python tools/config_reference.py [--check]

Types and bounds are worded by `hpcflow.spec.schema`, as in the refusals of a spec; defaults are the models'.
"""

from __future__ import annotations

import argparse
import json
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config_meanings import MEANINGS
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hpcflow.spec import schema
from hpcflow.spec.run import RunSpec

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "spec.md"
HEAD = """# The spec, key by key

Made by `tools/config_reference.py` from the models in `hpcflow/spec/`: change those, then run it again.

- Keys without a default are required. `spec.json` in the run folder has every default written out.
- Unknown keys are refused, and so are booleans and texts for numbers, and NaN. Numbers follow YAML 1.2.
- Relative paths are seen from the folder of the spec, those in `--set key=value` from the current folder.
- What must divide or fit together is checked by `hpcflow plan`.
"""


@dataclass
class Table:
    """The keys of one model, and every place of a spec where it stands."""

    model: type[BaseModel]
    key: tuple[str, ...]
    data: dict[str, Any]
    places: list[str] = field(default_factory=list)


def reference() -> str:
    """The whole page.

    Raises:
        KeyError: a key of the spec has no line in MEANINGS.
        ValueError: MEANINGS has a line for which there is no key.
    """
    tables: dict[type[BaseModel], Table] = {}
    for table in _walk(Table(RunSpec, (), {})):
        known = tables.setdefault(table.model, table)
        known.places.append(".".join(table.key))
    used: set[str] = set()
    parts = [HEAD, *(_section(table, used) for table in tables.values())]
    stale = sorted(MEANINGS.keys() - used)
    if stale:
        raise ValueError(f"no key of the spec for {', '.join(stale)}")
    return "\n".join(parts)


def _walk(table: Table) -> Iterator[Table]:
    """A model and all models below it, in the order of the spec."""
    yield table
    for name, info in table.model.model_fields.items():
        named = _named(info.annotation)
        if named is not None:  # a table for each name that the user gives
            yield from _walk(Table(named, (*table.key, name, "NAME"), _within((*table.key, name, "NAME"))))
        below = _models(info.annotation)
        for model in below:
            data: dict[str, Any] = {}
            if len(below) > 1:  # a tagged union: one table per kind
                data = {"kind": typing.get_args(model.model_fields["kind"].annotation)[0]}
            yield from _walk(Table(model, (*table.key, name), _within((*table.key, name), data)))


def _within(key: tuple[str, ...], data: dict[str, Any] | None = None) -> dict[str, Any]:
    """A document with `data` at `key`."""
    data = data or {}
    for part in reversed(key):
        data = {part: data}
    return data


def _named(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any annotation
    """The model of a mapping from names to models."""
    if typing.get_origin(annotation) is not dict:
        return None
    value = typing.get_args(annotation)[1]
    return value if isinstance(value, type) and issubclass(value, BaseModel) else None


def _models(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - any annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (dict, list):
        return []
    return [found for part in typing.get_args(annotation) for found in _models(part)]


def _section(table: Table, used: set[str]) -> str:
    kind = table.data
    for part in table.key:
        kind = kind[part]
    suffix = f" (kind: {kind['kind']})" if kind else ""
    title = ", ".join(f"`{place}`" for place in table.places if place) or "The root"
    lines = [f"## {title}{suffix}", ""]
    lines += ["| Key | Valid | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, info in table.model.model_fields.items():
        valid = schema.describe(schema.at((*table.key, name), table.data))
        meaning = _meaning(table.model, name, used)
        lines.append(f"| `{name}` | {valid} | {_default(info)} | {meaning} |")
    return "\n".join([*lines, ""])


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _meaning(model: type[BaseModel], name: str, used: set[str]) -> str:
    owner = next(base for base in model.__mro__ if name in vars(base).get("__annotations__", {}))
    label = f"{owner.__name__}.{name}"
    used.add(label)
    return MEANINGS[label]


def main() -> int:
    """Write the page, or with --check say whether it is current; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/reference/spec.md from the spec's models.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the page is stale")
    check = parser.parse_args().check
    text = reference()
    if not check:
        TARGET.write_text(text)
        return 0
    current = TARGET.read_text() == text
    print(f"{TARGET.name} is {'current' if current else 'stale: run tools/config_reference.py'}")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
