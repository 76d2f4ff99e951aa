"""A look at the files that a spec names, before anything is submitted.

Finds missing and unusable folders and the faults of a data file's first rows. Never loads a model
or a tokenizer and never imports a reward function: what needs those is found by the job's first
step.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.spec.roles import FunctionReward, ModelReward
from hpcflow.spec.rows import read_rows
from hpcflow.spec.run import RunSpec

FIRST_ROWS = 200

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_SINGLE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WINDOWS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


def check_files(spec: RunSpec) -> None:
    """Refuse a spec whose files cannot be used.

    Raises:
        SpecErrors: all missing or unusable files and folders, each with the key that names it.
        DataError: the first unusable row of a data file.
    """
    faults = [*_models(spec), *_reward_function(spec), *_data_files(spec), *_command_folders(spec)]
    if faults:
        raise SpecErrors(faults)
    for path in (spec.data.train, spec.data.heldout):
        _first_rows(Path(path), spec)


def _first_rows(path: Path, spec: RunSpec) -> None:
    rows = read_rows(
        path,
        prompt_key=spec.data.prompt_key,
        chat_template=spec.data.chat_template,
        limit=FIRST_ROWS,
    )
    for _ in rows:
        pass


def _data_files(spec: RunSpec) -> Iterator[SpecError]:
    for key, value in (("data.train", spec.data.train), ("data.heldout", spec.data.heldout)):
        if not Path(value).is_file():
            problem = "is a folder, not a file" if Path(value).is_dir() else "there is no such file"
            yield SpecError(spec.place(key), problem, value=value)


def _command_folders(spec: RunSpec) -> Iterator[SpecError]:
    """Programs are looked for when they start: what is here need not be on the nodes or in a container."""
    for name, command in spec.commands.items():
        if not Path(command.folder).is_dir():
            place = spec.place(f"commands.{name}.folder")
            yield SpecError(place, "there is no such folder", value=command.folder)


def _reward_function(spec: RunSpec) -> Iterator[SpecError]:
    reward = spec.roles.reward
    if not isinstance(reward, FunctionReward):
        return
    place = reward.function.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        yield SpecError(spec.place("roles.reward.function"), "there is no such file", value=place)


def _models(spec: RunSpec) -> Iterator[SpecError]:
    roles, random = spec.roles, spec.model.random_weights
    yield from _folder(spec, "model.path", spec.model.path, weights=not random, tokenizer=True)
    if roles.critic.model is not None:
        yield from _folder(spec, "roles.critic.model", roles.critic.model)
    if isinstance(roles.reward, ModelReward):
        yield from _folder(spec, "roles.reward.model", roles.reward.model)


def _folder(
    spec: RunSpec, key: str, value: str, *, weights: bool = True, tokenizer: bool = False
) -> Iterator[SpecError]:
    """Faults of one Hugging Face folder."""
    place, folder = spec.place(key), Path(value)
    if not folder.is_dir():
        hint = "a folder, seen from the spec's; tools/demo makes the demo's, others are downloaded before"
        yield SpecError(place, "there is no such folder", value=value, hint=hint)
        return
    try:
        config = _json(folder / "config.json")
        window = _window(config)
        needed = spec.data.max_prompt_tokens + spec.roles.rollout.max_response_tokens
        if window is not None and window < needed:
            problem = f"the model's window is {window} tokens, but {needed} are needed"
            hint = "lower data.max_prompt_tokens or roles.rollout.max_response_tokens"
            yield SpecError(place, problem, value=value, hint=hint)
        if tokenizer and not any((folder / name).is_file() for name in _TOKENIZERS):
            raise _FolderFaultError(f"no tokenizer in the folder: none of {', '.join(_TOKENIZERS)}")
        if weights:
            _check_weights(folder)
    except _FolderFaultError as fault:
        yield SpecError(place, str(fault), value=value)
    except OSError as error:
        yield SpecError(place, f"cannot be read: {error.strerror}", value=value)


class _FolderFaultError(Exception):
    """What is wrong with a model's folder."""


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise _FolderFaultError(f"no {path.name} in the folder")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise _FolderFaultError(f"{path.name} is not valid JSON: {error}") from None
    except RecursionError:
        raise _FolderFaultError(f"{path.name} is not valid JSON: nested too deeply") from None
    if not isinstance(content, dict):
        raise _FolderFaultError(f"{path.name} must hold a JSON object")
    return content


def _window(config: dict[str, Any]) -> int | None:
    """The longest sequence a model was made for, where its config states one."""
    inner = config["text_config"] if isinstance(config.get("text_config"), dict) else {}
    for place in (config, inner):
        for name in _WINDOWS:
            if isinstance(place.get(name), int):
                return int(place[name])
    return None


def _check_weights(folder: Path) -> None:
    """Every weight file that the folder names must be there, and whole as far as a look tells."""
    for name in _SINGLE_WEIGHTS:
        if (folder / name).is_file():
            _check_weight_file(folder / name)
            return
    for name in _INDEXES:
        if not (folder / name).is_file():
            continue
        mapping = _json(folder / name).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise _FolderFaultError(f"{name} names no weights")
        for shard in sorted({str(file) for file in mapping.values()}):
            if not (folder / shard).is_file():
                raise _FolderFaultError(f"{shard} is missing, which {name} names")
            _check_weight_file(folder / shard)
        return
    names = ", ".join((*_SINGLE_WEIGHTS, *_INDEXES))
    raise _FolderFaultError(f"no weights in the folder: none of {names}")


def _check_weight_file(path: Path) -> None:
    """A safetensors file states its length: a broken download is seen without reading it."""
    size = path.stat().st_size
    if size == 0:
        raise _FolderFaultError(f"{path.name} is empty")
    if path.suffix != ".safetensors":
        return
    broken = _FolderFaultError(f"{path.name} is damaged, or was not downloaded whole")
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8:
            raise broken
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
            whole = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            raise broken from None
    if size != whole:
        raise broken
