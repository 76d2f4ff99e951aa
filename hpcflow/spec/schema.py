"""What is valid where in a spec, in words: read from the models, so that it is written once.

Walks the JSON schema of `RunSpec`; knows nothing of the text that the user wrote.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hpcflow.spec.places import Key
from hpcflow.spec.run import RunSpec

Node = dict[str, Any]


@cache
def _root() -> Node:
    return RunSpec.model_json_schema()


def _variants(node: Node) -> list[Node]:
    """The alternatives of a node, references followed."""
    if "$ref" in node:
        return _variants(_root()["$defs"][node["$ref"].removeprefix("#/$defs/")])
    for word in ("anyOf", "oneOf"):
        if word in node:
            return [found for option in node[word] for found in _variants(option)]
    return [node]


def _children(node: Node, part: str | int) -> list[Node]:
    properties = node.get("properties", {})
    if part in properties:
        return _variants(properties[part])
    if isinstance(part, int) and "items" in node:
        return _variants(node["items"])
    open_keys = [node["additionalProperties"]] if node.get("additionalProperties") else []
    open_keys += node.get("patternProperties", {}).values()
    return [found for child in open_keys for found in _variants(child)]


def _fits(node: Node, data: object) -> bool:
    """Whether `data` carries the tag of this variant (such as `kind: function`)."""
    constants = {
        name: child["const"] for name, child in node.get("properties", {}).items() if "const" in child
    }
    if not isinstance(data, Mapping):
        return True
    return all(name not in data or data[name] == value for name, value in constants.items())


def at(key: Key, data: object) -> list[Node]:
    """The alternatives that may stand at `key` of the document `data`; empty where nothing may."""
    nodes = _variants(_root())
    for part in key:
        nodes = [found for node in nodes for found in _children(node, part)]
        data = _item(data, part)
        nodes = [node for node in nodes if _fits(node, data)] or nodes
    return nodes


def _item(data: object, part: str | int) -> object:
    if isinstance(data, Mapping):
        return data.get(part)
    if isinstance(data, Sequence) and not isinstance(data, str) and isinstance(part, int):
        return data[part] if part < len(data) else None
    return None


def keys(nodes: Sequence[Node]) -> list[str]:
    """The keys that a mapping at these nodes may have."""
    return sorted({name for node in nodes for name in node.get("properties", {})})


def describe(nodes: Sequence[Node]) -> str:
    """What may stand here, such as `a whole number from 1 to 1024`."""
    return " or ".join(dict.fromkeys(_describe(node) for node in nodes))


def _describe(node: Node) -> str:
    if "const" in node:
        return repr(node["const"])
    if "enum" in node:
        return "one of " + ", ".join(str(value) for value in node["enum"])
    match node.get("type"):
        case "integer":
            return "a whole number" + _range(node)
        case "number":
            return "a number" + _range(node)
        case "boolean":
            return "true or false"
        case "string":
            return str(node.get("description", "text"))
        case "array":
            return "a list"
        case "null":
            return "null"
        case _:
            return "a mapping"


def _range(node: Node) -> str:
    """Such as ` from 0 to 1`; empty where the number is free."""
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    words = [
        f"{word} {_number(bound)}"
        for word, bound in (
            ("at least", low),
            ("above", above),
            ("at most", high),
            ("below", below),
        )
        if bound is not None
    ]
    return " " + " and ".join(words) if words else ""


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


@cache
def _everywhere() -> dict[str, tuple[str, ...]]:
    """Every key of a spec, by its last name."""
    found: dict[str, list[str]] = {}
    for dotted in _walk(_root(), ""):
        found.setdefault(dotted.rpartition(".")[2], []).append(dotted)
    return {name: tuple(dict.fromkeys(places)) for name, places in found.items()}


def _walk(node: Node, prefix: str) -> Iterator[str]:
    for variant in _variants(node):
        for name, child in variant.get("properties", {}).items():
            yield prefix + name
            yield from _walk(child, f"{prefix}{name}.")


def suggest(key: Key, siblings: Sequence[str]) -> tuple[str, str]:
    """For an unknown key: the sibling that was probably meant (or nothing), and a hint."""
    name, dotted = str(key[-1]), ".".join(str(part) for part in key)
    if dotted in _everywhere().get(name, ()):
        return "", "this key belongs to another kind; valid keys: " + ", ".join(siblings)
    return _suggest(name, siblings)


def _suggest(key: str, siblings: Sequence[str]) -> tuple[str, str]:
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.75)
    if not close and key in _everywhere():
        return "", "this key belongs to " + _some(_everywhere()[key])
    close = close or difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    close = close or [name for name in siblings if name.startswith(key) or key.startswith(name)][:1]
    if close:
        return close[0], f"did you mean {close[0]}?"
    distant = difflib.get_close_matches(key, _everywhere(), n=1, cutoff=0.75)
    if distant:
        return "", "did you mean " + _some(_everywhere()[distant[0]]) + "?"
    return "", "valid keys: " + ", ".join(siblings)


def _some(places: Sequence[str]) -> str:
    return " or ".join(places) if len(places) <= 4 else " or ".join(places[:3]) + " or others"
