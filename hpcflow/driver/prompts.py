"""Which prompts a step gets: a resumable order for training, a fixed set for evaluation.

The order is a pure function of (seed, epoch, position), so two numbers are all that a checkpoint holds,
and a resumed run goes on with the very prompt that the straight run would have taken. Never reads files
(see `prompt_file`) and never holds an iterator that would have to be restored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcflow.driver.draws import permutation, seed_of
from hpcflow.errors import FirstStepFault

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """One usable row of a data file.

    `id` is the row's index in its file, rows that cannot be used included; `token_ids` are exactly what
    the engines get; `row` is the whole row.
    """

    id: int
    token_ids: tuple[int, ...]
    text: str
    row: Mapping[str, Any]

    @cached_property
    def row_json(self) -> str:
        """The row as JSON in ASCII; what JSON does not know (dates, bytes) becomes its text."""
        return json.dumps(self.row, default=str)


class PromptStream:
    """Endless training prompts: all rows once per epoch, each epoch in an order of its own."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool = True) -> None:
        assert prompts, "a stream needs prompts"
        self._prompts = tuple(prompts)
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    def __len__(self) -> int:
        """Prompts per epoch."""
        return len(self._prompts)

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self._epoch

    def next(self, count: int) -> list[Prompt]:
        """The next `count` prompts; crosses epoch edges as often as it must."""
        taken: list[Prompt] = []
        while len(taken) < count:
            end = min(self._position + count - len(taken), len(self._prompts))
            taken.extend(self._prompts[index] for index in self._order[self._position : end])
            self._move(self._epoch, end)
        return taken

    def state(self) -> dict[str, int]:
        """Where the next prompt is: completed epochs, and prompts taken from the current one.

        `position` is always less than the number of prompts: the end of an epoch is the start of the
        next, so that no state means "exhausted".
        """
        return {"epoch": self._epoch, "position": self._position}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from a state of a stream with the same prompts, seed and shuffle.

        Raises:
            FirstStepFault: (cause `data`) the state is beyond the prompts, so the data changed.
        """
        epoch, position = state["epoch"], state["position"]
        if epoch < 0 or not 0 <= position < len(self._prompts):
            raise FirstStepFault(
                f"the checkpoint is at prompt {position} of epoch {epoch}, "
                f"but data.train has {len(self._prompts)} usable prompts",
                cause="data",
                role="driver",
                hint="resume with the data file and data settings that the run was started with",
            )
        self._move(epoch, position)

    def _move(self, epoch: int, position: int) -> None:
        if position == len(self._prompts):
            epoch, position = epoch + 1, 0
        if epoch != self._epoch:
            self._order = self._order_of(epoch)
        self._epoch, self._position = epoch, position

    def _order_of(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(len(self._prompts))
        return epoch_order(len(self._prompts), seed=self._seed, epoch=epoch)


class HeldOut:
    """The fixed prompts that every evaluation of a run uses, in file order."""

    def __init__(self, prompts: Sequence[Prompt], *, training: Sequence[Prompt]) -> None:
        """Counts and warns of prompts that training sees too: their scores prove nothing."""
        self.prompts = tuple(prompts)
        seen = {prompt.token_ids for prompt in training}
        shared = [prompt.id for prompt in self.prompts if prompt.token_ids in seen]
        self.overlap = len(shared)
        if shared:
            log.warning(
                "%d of %d held-out prompts are in data.train too (rows %s): the held-out score "
                "will look better than it is",
                len(shared),
                len(self.prompts),
                ", ".join(map(str, shared[:10])) + (", ..." if len(shared) > 10 else ""),
            )


def epoch_order(count: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of `count` prompts in one epoch; depends on its arguments only."""
    return permutation(count, f"epoch {seed} {epoch}")


def sample_seed(run_seed: int, step: int, prompt_id: int, sample_index: int) -> int:
    """The seed of one sample, in [0, 2**31): the same on every machine and in every attempt.

    `sample_index` must tell apart samples of one prompt within a step, also when a small file gives a
    step the same prompt twice.
    """
    return seed_of(f"sample {run_seed} {step} {prompt_id} {sample_index}")
