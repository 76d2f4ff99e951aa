"""From `ppo.yaml` and `--set` to a RunSpec; every fault names file, line, key and what is valid.

`save` and `load_resolved` write and read `spec.json`, the same spec with every default written out.
Never looks at the files that a spec names: that is `spec.files`.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcflow import atomic
from hpcflow.errors import SpecError, SpecErrors
from hpcflow.spec import document
from hpcflow.spec.faults import translate
from hpcflow.spec.fields import CommandLineText
from hpcflow.spec.places import Key, Place, Places
from hpcflow.spec.run import RunSpec

MAX_BYTES = 1 << 20

_OVERRIDE = re.compile(r"([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)=(.*)", re.DOTALL)


def load(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read a spec; each override is `key.path=value` with a YAML value, the last one wins.

    Relative paths are seen from the spec's folder, those in overrides from the current folder.

    Raises:
        SpecErrors: all faults that were found, in the order of the file.
    """
    text = _read(path)
    parsed = document.parse(text, lambda line: f"{path}:{line}")
    if not isinstance(parsed.data, dict):
        problem = "the file is empty" if parsed.data is None else "a spec is a mapping of keys"
        raise SpecErrors([SpecError(f"{path}:1", problem, hint="see configs/ for examples")])
    faults: list[SpecError] = []
    for override in overrides:
        try:
            _override(parsed, override)
        except SpecErrors as error:
            faults += error.faults
    if faults:
        raise SpecErrors(faults)
    places = Places(f"{path}:1", parsed.places)
    try:
        spec = RunSpec.model_validate(parsed.data, context={"folder": path.absolute().parent})
    except ValidationError as error:
        raise SpecErrors(translate(error, parsed.data, places)) from None
    return spec.written_at(places)


def save(spec: RunSpec, path: Path) -> None:
    """Publish the resolved spec as JSON."""
    atomic.write_json(path, spec.model_dump(mode="json"))


def load_resolved(path: Path) -> RunSpec:
    """Read what `save` wrote: an equal spec.

    Raises:
        SpecErrors: the file is missing, or was changed by hand into something that is no spec.
    """
    text = _read(path)
    try:
        return RunSpec.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        dotted = ".".join(str(part) for part in first["loc"])
        fault = SpecError(f"{path} {dotted}".strip(), f"not a resolved spec: {first['msg']}")
        raise SpecErrors([fault]) from None


def _read(path: Path) -> str:
    """The text of a spec file.

    Raises:
        SpecErrors: it cannot be read, or is no UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # no more: a device may have no end
    except FileNotFoundError:
        raise SpecErrors([SpecError(str(path), "there is no such file")]) from None
    except OSError as error:
        raise SpecErrors([SpecError(str(path), f"cannot be read: {error.strerror}")]) from None
    if len(content) > MAX_BYTES:
        raise SpecErrors([SpecError(str(path), f"larger than {MAX_BYTES} bytes: not a spec")])
    if content.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        problem = "the file begins with a byte order mark"
        raise SpecErrors([SpecError(f"{path}:1", problem, hint="save it as plain UTF-8")])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise SpecErrors([SpecError(f"{path}:{line}", problem, hint="save it as UTF-8")]) from None


def _override(target: document.Document, override: str) -> None:
    """Put one `key.path=value` into the document.

    Raises:
        SpecErrors: it has another form, its value is no YAML, or its path leads through a value.
    """
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        shown = document.shown(repr(override))
        fault = SpecError("--set", "must be key.path=value", value=shown)
        raise SpecErrors([fault])
    dotted, text = match.groups()
    key: Key = tuple(dotted.split("."))
    value = document.parse(text, lambda _: f"--set {dotted}")
    here: dict[str, Any] = target.data
    for depth, part in enumerate(key[:-1], start=1):
        below = here.setdefault(str(part), {})
        if below is None:
            below = here[str(part)] = {}
        if not isinstance(below, dict):
            above = ".".join(str(name) for name in key[:depth])
            raise SpecErrors([SpecError(f"--set {dotted}", f"{above} is not a mapping")])
        here = below
    for stale in [old for old in target.places if old[: len(key)] == key]:
        del target.places[stale]
    here[str(key[-1])] = _located(value.data)
    target.places[key] = Place("--set", document.shown(_as_written(text, value.data)))
    for below_key, place in value.places.items():
        target.places[*key, *below_key] = Place("--set", place.text)


def _as_written(text: str, value: object) -> str:
    return repr(value) if isinstance(value, str) else text.strip() or "nothing"


def _located(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    """Mark every text, so that paths among them are seen from the current folder."""
    match value:
        case str():
            return CommandLineText(value)
        case dict():
            return {key: _located(item) for key, item in value.items()}
        case list():
            return [_located(item) for item in value]
        case _:
            return value
