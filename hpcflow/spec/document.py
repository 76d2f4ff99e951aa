"""YAML text to plain data, with the place of every key: no objects, no code, no surprises.

YAML 1.2's core types: `1e-5` is a number, `yes` is a text, `010` is ten. Refused: duplicate keys,
tags (which could name code to run), keys that are no text, and documents that are too deep or that
grow too large through aliases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.spec.places import Key, Place

MAX_DEPTH = 32
MAX_VALUES = 20_000
MAX_DIGITS = 100
MAX_SHOWN = 80

_CORE = "tag:yaml.org,2002:"
_TYPES = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class _Loader(yaml.SafeLoader):
    """Composes nodes by YAML 1.2's core types and never constructs an object."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML declares it so
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, at a bounded depth: PyYAML itself would recurse without end."""
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise yaml.composer.ComposerError(None, None, problem, self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _name, _pattern in _TYPES.items():
    _Loader.add_implicit_resolver(_CORE + _name, re.compile(f"^(?:{_pattern})$"), None)


@dataclass
class Document:
    """Plain data and the place of every key in it."""

    data: Any
    places: dict[Key, Place]


def parse(text: str, place: Callable[[int], str]) -> Document:
    """Read one YAML document; `place` turns a line number (from 1) into the words that name it.

    Raises:
        SpecErrors: what is no valid YAML, or YAML that a spec may not use.
    """
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = error.problem or error.context or "not valid"
        raise SpecErrors([SpecError(place(line), f"not valid YAML: {problem}")]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"character U+{int(error.character):04X} is not allowed"
        raise SpecErrors([SpecError(place(line), problem)]) from None
    builder = _Builder(place)
    data = None if node is None else builder.build(node, ())
    if builder.faults:
        raise SpecErrors(builder.faults)
    return Document(data, builder.places)


def shown(value: str) -> str:
    """A text as messages quote it: one line, at most `MAX_SHOWN` characters."""
    return value if len(value) <= MAX_SHOWN else value[: MAX_SHOWN - 3] + "..."


@dataclass
class _Builder:
    """Turns composed nodes into data, collecting faults instead of stopping at the first."""

    place: Callable[[int], str]
    places: dict[Key, Place] = field(default_factory=dict)
    faults: list[SpecError] = field(default_factory=list)
    values: int = 0

    def build(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401 - any YAML value
        """The data of `node`, which stands at `key`."""
        self.values += 1
        if self.values > MAX_VALUES or len(key) > MAX_DEPTH:
            if self.values < 2 * MAX_VALUES:
                self.values = 2 * MAX_VALUES
                problem = f"aliases make more than {MAX_VALUES} values or {MAX_DEPTH} levels"
                self._fault(node, key, problem)
            return None
        if isinstance(node, yaml.MappingNode) and node.tag == _CORE + "map":
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode) and node.tag == _CORE + "seq":
            return self._sequence(node, key)
        if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_CORE) in {"str", *_TYPES}:
            return self._scalar(node, key)
        tag = node.tag.replace(_CORE, "!!")
        self._fault(node, key, "tags are not allowed: a spec holds data and runs no code", tag)
        return None

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode) or name_node.tag != _CORE + "str":
                self._fault(name_node, key, "a key must be text", _text(name_node))
                continue
            name, line = name_node.value, name_node.start_mark.line + 1
            if name in first:
                problem = f"duplicate key, first given in line {first[name]}"
                self._fault(name_node, (*key, name), problem)
                continue
            first[name] = line
            self.places[*key, name] = Place(self.place(line), _text(value_node))
            data[name] = self.build(value_node, (*key, name))
        return data

    def _sequence(self, node: yaml.SequenceNode, key: Key) -> list[Any]:
        data = []
        for index, item in enumerate(node.value):
            line = item.start_mark.line + 1
            self.places[*key, index] = Place(self.place(line), _text(item))
            data.append(self.build(item, (*key, index)))
        return data

    def _scalar(self, node: yaml.ScalarNode, key: Key) -> str | int | float | bool | None:
        kind, text = node.tag.removeprefix(_CORE), str(node.value)
        if kind == "str":
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                self._fault(node, key, "half of a surrogate pair is no character")
            return text
        if not re.fullmatch(_TYPES[kind], text):
            self._fault(node, key, f"not a value of type {kind}", shown(text))
            return None
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if len(text) > MAX_DIGITS:
            self._fault(node, key, f"a number of more than {MAX_DIGITS} digits", shown(text))
            return None
        if kind == "int":
            return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
        lowered = text.lower()
        return float(lowered.replace(".", "") if lowered.endswith(("inf", "nan")) else lowered)

    def _fault(self, node: yaml.Node, key: Key, problem: str, value: str = "") -> None:
        dotted = ".".join(str(part) for part in key)
        place = f"{self.place(node.start_mark.line + 1)} {dotted}".strip()
        self.faults.append(SpecError(place, problem, value=value))


def _text(node: yaml.Node) -> str:
    """A value as the user wrote it, for messages."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag == _CORE + "str":
        return shown(repr(node.value))
    return shown(node.value) or "nothing"
