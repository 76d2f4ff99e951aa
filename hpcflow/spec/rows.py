"""Rows of a data file, JSONL or Parquet: for the look before submission and for the job alike.

Strict, because a bad row found late costs hours: every fault is a DataError that names file and
line (of Parquet: the row, from 1). The job, where a bad row costs that row only, asks to be told of
it instead. Harmless and accepted: CRLF line ends, blank lines, no newline
at the end. Never knows of tokenizers; lengths are checked by the job.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcflow.errors import DataError

MAX_LINE_BYTES = 64 << 20
# Of a row's keys, in a message.
MAX_NAMES = 20
MAX_SHOWN = 300
_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_Read = tuple[int, dict[str, Any] | DataError]


@dataclass(frozen=True)
class Row:
    """One data row and its line (from 1; of Parquet the row's number)."""

    line: int
    data: dict[str, Any]


def read_rows(
    path: Path,
    *,
    prompt_key: str,
    chat_template: bool = False,
    limit: int | None = None,
    on_fault: Callable[[int, DataError], None] | None = None,
) -> Iterator[Row]:
    """The first `limit` rows (all by default), each with a usable prompt under `prompt_key`.

    A prompt is a text that is not blank or, with `chat_template`, also a list of messages, each
    with the texts `role` and `content`. A row with a fault is handed, with its line, to `on_fault`
    and left out; `limit` counts it too.

    Raises:
        DataError: while iterating, at the first fault of a row (without `on_fault`) or of the whole
            file; also where the file has no rows.
    """
    readers = {".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(str(path), "must end in .jsonl or .parquet")
    if not path.is_file():
        problem = "is no file" if path.exists() else "there is no such file"
        raise DataError(str(path), problem)
    found = False
    try:
        for line, data in itertools.islice(readers[path.suffix](path, prompt_key), limit):
            found = True
            try:
                row = Row(line, _usable(data))
                _check_prompt(f"{path}:{line}", row.data, prompt_key, chat_template)
            except DataError as fault:
                if on_fault is None:
                    raise
                on_fault(line, fault)
            else:
                yield row
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from None
    if not found:
        raise DataError(str(path), "the file holds no rows")


def _usable(data: dict[str, Any] | DataError) -> dict[str, Any]:
    if isinstance(data, DataError):
        raise data
    return data


def _jsonl(path: Path, prompt_key: str) -> Iterator[_Read]:
    """Lines and their objects, or why a line is none: a bad line does not end the reading."""
    del prompt_key  # a line may have any keys: its prompt is checked row by row
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE_BYTES)
            if not line:
                return
            place = f"{path}:{number}"
            if number == 1 and line.startswith(_BOMS):
                hint = "save the file as plain UTF-8"
                raise DataError(place, "the file begins with a byte order mark", hint=hint)
            if len(line) >= MAX_LINE_BYTES:
                raise DataError(place, f"the line is longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                try:
                    data = _parse(line, place)
                except DataError as fault:
                    yield number, fault
                else:
                    yield number, data


def _parse(line: bytes, place: str) -> dict[str, Any]:
    """One line as an object.

    Raises:
        DataError: it is no UTF-8, no JSON, or no object.
    """
    if b"\0" in line:
        raise DataError(place, "holds a NUL byte: the file is damaged, or is no text")
    try:
        data = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        hint = "save the file as UTF-8"
        raise DataError(place, f"byte 0x{line[error.start]:02x} is not UTF-8", hint=hint) from None
    except json.JSONDecodeError as error:
        if not line.endswith(b"\n"):
            hint = "the file may have been copied while it was written"
            raise DataError(place, "the last line is cut off", hint=hint) from None
        problem = f"not valid JSON: {error.msg}, column {error.colno}"
        raise DataError(place, problem) from None
    except (ValueError, RecursionError) as error:
        raise DataError(place, f"not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise DataError(place, f"must be an object {{...}}, not {_kind(data)}")
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _parquet(path: Path, prompt_key: str) -> Iterator[_Read]:
    # Imported here: it takes a while, and most runs read JSONL.
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = list(file.schema_arrow.names)
            if prompt_key not in columns:
                raise _missing(str(path), "column", prompt_key, columns)
            numbers = itertools.count(1)
            for batch in file.iter_batches(batch_size=1024):
                for data in _objects(batch):
                    number = next(numbers)
                    if isinstance(data, ValueError | OverflowError):
                        yield number, DataError(f"{path}:{number}", f"cannot be read: {data}")
                    else:
                        yield number, data
    except pyarrow.ArrowException as error:
        first = str(error).partition("\n")[0]
        raise DataError(str(path), f"not a readable Parquet file: {first}") from None


def _objects(batch: Any) -> Iterator[dict[str, Any] | ValueError | OverflowError]:  # noqa: ANN401
    """The rows of a pyarrow batch; one with a value that Python cannot hold is its error instead."""
    try:
        yield from batch.to_pylist()
        return
    except (ValueError, OverflowError):  # bytes that are not UTF-8, dates that are out of range
        pass
    for index in range(batch.num_rows):
        try:
            yield batch.slice(index, 1).to_pylist()[0]
        except (ValueError, OverflowError) as error:
            yield error


def _missing(place: str, what: str, name: str, there: list[str]) -> DataError:
    names = ", ".join(there[:MAX_NAMES]) or "none"
    shown = names if len(names) <= MAX_SHOWN else f"{names[:MAX_SHOWN]}..."
    more = f" and {len(there) - MAX_NAMES} more" if len(there) > MAX_NAMES else ""
    hint = f"it has: {shown}{more}; set data.prompt_key to the {what} of the prompts"
    return DataError(place, f"there is no {what} {name!r}", hint=hint)


def _check_prompt(place: str, data: dict[str, Any], key: str, chat_template: bool) -> None:
    """Refuse a row whose prompt nothing could be generated from.

    Raises:
        DataError: naming what it is instead.
    """
    if key not in data:
        raise _missing(place, "key", key, list(data))
    prompt = data[key]
    if isinstance(prompt, list) and chat_template:
        _check_messages(place, key, prompt)
        return
    if isinstance(prompt, str):
        _check_text(place, key, prompt)
        return
    hint = "lists of messages need data.chat_template: true" if isinstance(prompt, list) else ""
    raise DataError(place, f"{key!r} must be text, not {_kind(prompt)}", hint=hint)


def _check_text(place: str, key: str, text: str) -> None:
    if not text.strip():
        raise DataError(place, f"{key!r} is {'blank' if text else 'empty'}")
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = f"{key!r} holds half of a surrogate pair, which is no character"
        raise DataError(place, problem) from None


def _check_messages(place: str, key: str, messages: list[Any]) -> None:
    if not messages:
        raise DataError(place, f"{key!r} is an empty list of messages")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(place, f"message {number} of {key!r} needs the keys role and content")
        for part in ("role", "content"):
            if not isinstance(message[part], str):
                what = f"{part} of message {number} of {key!r}"
                raise DataError(place, f"{what} must be text, not {_kind(message[part])}")
            _check_text(place, f"{key}[{number}].{part}", message[part])


def _kind(value: object) -> str:
    """A JSON value's type in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"
