"""Faults that the models find, as `SpecError`s: file, line, key, value and what is valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hpcflow.errors import SpecError
from hpcflow.spec import schema
from hpcflow.spec.places import Key, Places

# Keys below a tagged union: pydantic puts the tag between the union's key and the key below it.
_TAGGED: Key = ("roles", "reward")
# Values that may be of several simple types: pydantic reports each type that does not fit.
_SEVERAL_TYPES: Key = ("slurm", "options")


def translate(error: ValidationError, data: Any, places: Places) -> list[SpecError]:  # noqa: ANN401
    """All faults of a document, in the order of their places in it."""
    found: dict[tuple[Key, str], SpecError] = {}
    explained: set[Key] = set()
    missing: set[tuple[Key, str]] = set()
    for detail in error.errors(include_url=False):
        key = _key(detail)
        if detail["type"] == "missing":
            missing.add((key, _REQUIRED))
        if detail["type"] == "extra_forbidden":
            fault, meant = _unknown(key, data, places)
            explained.add((*key[:-1], meant))
            found.setdefault((key, "unknown"), fault)
            continue
        for at, problem, value, hint in _faults(detail, key, data, places):
            fault = SpecError(places.describe(at), problem, value=value, hint=hint)
            found.setdefault((at, problem), fault)
    # A misspelt key is one slip: what it was meant to be is not reported as missing too.
    for item in missing:
        if item[0] in explained:
            found.pop(item, None)
    order = list(places.by_key)
    return [found[item] for item in sorted(found, key=lambda item: _rank(item[0], order))]


_REQUIRED = "this key is required"


def _rank(key: Key, order: list[Key]) -> int:
    for length in range(len(key), 0, -1):
        if key[:length] in order:
            return order.index(key[:length])
    return -1


def _key(detail: ErrorDetails) -> Key:
    key = tuple(part for part in detail["loc"] if part != "[key]")
    if key[: len(_TAGGED)] == _TAGGED and len(key) > len(_TAGGED):
        key = (*_TAGGED, *key[len(_TAGGED) + 1 :])
    if key[: len(_SEVERAL_TYPES)] == _SEVERAL_TYPES:
        key = key[: len(_SEVERAL_TYPES) + 1]
    return key


def _faults(
    detail: ErrorDetails, key: Key, data: object, places: Places
) -> Iterator[tuple[Key, str, str, str]]:
    """Key, problem, value and hint of each fault that one pydantic error stands for."""
    nodes = schema.at(key, data)
    match detail["type"]:
        case "rules":
            for rule in detail["ctx"]["rules"]:
                at = (*key, *(rule.key.split(".") if rule.key else ()))
                yield at, rule.problem, places.text(at), rule.hint
        case "missing":
            yield key, _REQUIRED, "", f"valid: {schema.describe(nodes)}"
        case "union_tag_not_found" | "union_tag_invalid":
            at = (*key, "kind")
            valid = schema.describe(schema.at(at, {}))
            if isinstance(detail["input"], dict) and "kind" not in detail["input"]:
                yield at, _REQUIRED, "", f"valid: {valid}"
            elif isinstance(detail["input"], dict):
                yield at, f"must be {valid}", places.text(at), ""
            else:
                yield key, "must be a mapping", places.text(key), ""
        case _ if "[key]" in detail["loc"]:
            yield key, f"not a valid name: {detail['msg']}", "", ""
        case "string_too_short":
            yield key, "must not be empty", places.text(key), ""
        case "string_too_long":
            limit = detail["ctx"]["max_length"]
            yield key, f"must have at most {limit} characters", places.text(key), ""
        case "string_pattern_mismatch" if "description" not in nodes[0]:
            yield key, "must not hold control characters", places.text(key), ""
        case _:
            yield key, f"must be {schema.describe(nodes)}", places.text(key), ""


def _unknown(key: Key, data: object, places: Places) -> tuple[SpecError, str]:
    if key[-1] == "<<":
        return SpecError(places.describe(key), "YAML merge keys are not supported"), ""
    siblings = schema.keys(schema.at(key[:-1], data))
    meant, hint = schema.suggest(key, siblings)
    return SpecError(places.describe(key), "unknown key", hint=hint), meant
