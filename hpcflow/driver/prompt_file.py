"""Read a data file into prompts, once, at the job's first step.

A row that cannot be a prompt costs that row: it is dropped, counted, and named with its line in a warning.
Above `data.max_faulty_fraction`, or when nothing is left, the run stops before models load. Never shortens
a prompt, and never renders one twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from hpcflow.driver.prompts import HeldOut, Prompt, PromptStream
from hpcflow.driver.rendering import Renderer, UnusablePrompt
from hpcflow.errors import DataError, FirstStepFault
from hpcflow.spec.rows import Row, read_rows
from hpcflow.spec.run import Data, RunSpec

log = logging.getLogger(__name__)

LINES_NAMED = 10


@dataclass(frozen=True)
class PromptSets:
    """What a run trains on, and what it is measured on."""

    stream: PromptStream
    heldout: HeldOut


def read_prompt_sets(spec: RunSpec, renderer: Renderer) -> PromptSets:
    """Both files of the spec.

    Raises:
        FirstStepFault: (cause `data`) a file cannot be read, or too few of its rows can be used.
    """
    training = read_prompts("data.train", Path(spec.data.train), spec.data, renderer)
    heldout = read_prompts(
        "data.heldout", Path(spec.data.heldout), spec.data, renderer, wanted=spec.evaluation.prompts
    )
    return PromptSets(
        stream=PromptStream(training, seed=spec.seed, shuffle=spec.data.shuffle),
        heldout=HeldOut(heldout, training=training),
    )


def read_prompts(
    key: str, path: Path, data: Data, renderer: Renderer, *, wanted: int | None = None
) -> list[Prompt]:
    """The first `wanted` usable prompts of a file (all by default), in file order.

    `key` is the spec's name for the file. Rows after the last wanted one are not looked at.

    Raises:
        FirstStepFault: (cause `data`) as for `read_prompt_sets`.
    """
    faults = _Faults(key, path)
    prompts: list[Prompt] = []
    try:
        rows = read_rows(
            path,
            prompt_key=data.prompt_key,
            chat_template=data.chat_template,
            on_fault=faults.unreadable,
        )
        for row in rows:
            index = len(prompts) + len(faults.reasons)
            prompt = _prompt(index, row, data, renderer, faults)
            if prompt is not None:
                prompts.append(prompt)
            if len(prompts) == wanted:
                break
    except DataError as error:
        raise FirstStepFault(
            f"{key}: {error.message}", cause="data", role="driver", hint=error.hint
        ) from error
    faults.judge(usable=len(prompts), data=data)
    return prompts


def _prompt(index: int, row: Row, data: Data, renderer: Renderer, faults: _Faults) -> Prompt | None:
    try:
        rendered = renderer.render(row.data[data.prompt_key])
    except UnusablePrompt as error:
        faults.add(row.line, str(error))
        return None
    length = len(rendered.token_ids)
    if length > data.max_prompt_tokens:
        faults.too_long(row.line, length, data.max_prompt_tokens)
        return None
    return Prompt(id=index, token_ids=rendered.token_ids, text=rendered.text, row=row.data)


class _Faults:
    """The rows of one file that cannot be used, by line."""

    def __init__(self, key: str, path: Path) -> None:
        self._key = key
        self._path = path
        self.reasons: dict[int, str] = {}
        self._too_long: list[int] = []

    def add(self, line: int, reason: str) -> None:
        self.reasons[line] = reason

    def unreadable(self, line: int, error: DataError) -> None:
        # The place is named with every line already.
        self.add(line, error.message.removeprefix(f"{error.place}: "))

    def too_long(self, line: int, length: int, limit: int) -> None:
        self._too_long.append(length)
        self.add(line, f"the prompt has {length} tokens, data.max_prompt_tokens is {limit}")

    def judge(self, *, usable: int, data: Data) -> None:
        """Warn of the rows dropped, or stop the run when there are too many."""
        count = len(self.reasons)
        if not count:
            return
        rows = count + usable
        summary = f"{self._key} {self._path}: {count} of {rows} rows cannot be used"
        if len(self._too_long) == rows:
            raise FirstStepFault(
                f"{self._key} {self._path}: all {rows} prompts are longer than "
                f"data.max_prompt_tokens ({data.max_prompt_tokens})",
                cause="data",
                role="driver",
                hint=f"the shortest has {min(self._too_long)} tokens",
            )
        if not usable or count > data.max_faulty_fraction * rows:
            raise FirstStepFault(
                f"{summary}, more than data.max_faulty_fraction ({data.max_faulty_fraction:g}) "
                f"allows: {self._named()}",
                cause="data",
                role="driver",
                hint="mend these rows, or raise data.max_faulty_fraction to drop them",
            )
        log.warning("%s and are dropped: %s", summary, self._named())

    def _named(self) -> str:
        named = [f"line {line}: {reason}" for line, reason in self.reasons.items()]
        more = len(named) - LINES_NAMED
        return "; ".join(named[:LINES_NAMED]) + (f"; and {more} more" if more > 0 else "")
