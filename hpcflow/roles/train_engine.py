"""The train engine: DeepSpeed ZeRO around a transformers model, over gloo and over NCCL alike.

Gradients are exact sums: a micro-loss is a local sum divided once by a GLOBAL count, and the engine
undoes every average that DeepSpeed takes over ranks or microbatches. So loss and gradient norm do
not depend on how the rows are spread.

It never draws random numbers, reads data, or decides when to save.

Who waits for whom: every method except `forward` of stages 1 and 2 is a collective; all ranks call
the same methods in the same order, with the same number of microbatches. Waits end after the
timeout given to `rendezvous.join`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import deepspeed
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from hpcflow.algorithms.schedule import ScheduleKind, learning_rate_factor
from hpcflow.weights.base import ParameterSpec

CLIENT_STATE = "client_state_rank{rank}.pt"


@dataclass(frozen=True)
class TrainSettings:
    """What the engine needs to know; learning rates and their schedule count optimizer steps.

    `max_grad_norm` 0 means no clipping. `horizon_steps` is where linear and cosine reach 0.
    """

    zero_stage: Literal[1, 2, 3]
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: ScheduleKind = "constant"
    warmup_steps: int = 0
    horizon_steps: int = 0
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class StepReport:
    """One optimizer step: global gradient norm before clipping, the rate used, and its fate.

    A step is skipped on all ranks when any rank's gradient is not finite; the norm is then inf.
    """

    grad_norm: float
    learning_rate: float
    skipped: bool


class TrainEngine:
    """A model, its AdamW and its schedule, partitioned over the ranks of the default group.

    The learning rate is a pure function of `optimizer_steps`, which DeepSpeed saves; skipped steps
    count, so that actor, critic and plan stay in step.
    """

    def __init__(self, model: PreTrainedModel, settings: TrainSettings) -> None:
        self._settings = settings
        self._device = torch.device(settings.device)
        if settings.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self._engine: Any = deepspeed.initialize(
            model=model, optimizer=optimizer, config=_deepspeed_config(settings)
        )[0]

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return int(self._engine.global_steps)

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps that a non-finite gradient turned into nothing."""
        return int(self._engine.skipped_steps)

    def forward(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V) of a causal LM, or (B, T, 1) of a value model, in the model's dtype.

        Rows are right-padded to T; what the padding holds has no influence on the real tokens.
        Gradients are on unless the caller turned them off.
        """
        tokens_BT = tokens_BT.to(self._device)
        positions_T = torch.arange(tokens_BT.shape[1], device=self._device)
        padding_BT = positions_T >= lengths_B.to(self._device)[:, None]
        # Attention is causal, so padding on the right needs no mask; only its ids must be valid.
        output = self._engine(input_ids=tokens_BT.masked_fill(padding_BT, 0), use_cache=False)
        logits: torch.Tensor = output.logits
        return logits

    def minimise(self, losses: Sequence[Callable[[], torch.Tensor]]) -> StepReport:
        """Take one optimizer step on the sum of all microbatch losses of all ranks.

        Each callable runs `forward` and returns a local sum divided by a GLOBAL count; each is run
        just before its backward pass. The number of microbatches must be the same on every rank.
        """
        assert losses, "an optimizer step needs at least one microbatch"
        rate = self._set_learning_rate()
        skipped_before = self.skipped_steps
        world_size = dist.get_world_size()
        for index, loss in enumerate(losses):
            self._engine.set_gradient_accumulation_boundary(index == len(losses) - 1)
            # DeepSpeed divides summed gradients by the world size.
            self._engine.backward(loss() * world_size, scale_wrt_gas=False)
        self._engine.step()
        return StepReport(
            grad_norm=float(self._engine.get_global_grad_norm()),
            learning_rate=rate,
            skipped=self.skipped_steps > skipped_before,
        )

    def parameter_specs(self) -> list[ParameterSpec]:
        """Names, dtypes and full shapes of what `full_parameters` yields; gathers nothing."""
        return [
            ParameterSpec(
                name=name,
                dtype=str(parameter.dtype).removeprefix("torch."),
                shape=tuple(self._full_shape(parameter)),
            )
            for name, parameter in self._engine.module.named_parameters()
        ]

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter whole, under its Hugging Face name; tied weights once.

        All ranks iterate to the end and in step: under ZeRO-3 each yield is a gather, and the
        tensor is gone when the next one is asked for.
        """
        for name, parameter in self._engine.module.named_parameters():
            if self._settings.zero_stage < 3:
                yield name, parameter.detach()
                continue
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=None):
                yield name, parameter.detach()

    def save(self, folder: Path, tag: str, client_state: dict[str, Any]) -> None:
        """Write `folder/tag`: weights, optimizer, step counters, and each rank's client state.

        The client state holds tensors, numbers, strings, and lists, tuples or dicts of those.
        """
        self._engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
        torch.save(client_state, folder / tag / CLIENT_STATE.format(rank=dist.get_rank()))
        dist.barrier()

    def load(self, folder: Path, tag: str) -> dict[str, Any]:
        """Restore what `save` wrote at the same world size; returns this rank's client state.

        Raises FileNotFoundError where a part is missing.
        """
        path, _ = self._engine.load_checkpoint(str(folder), tag=tag)
        if path is None:
            raise FileNotFoundError(f"no DeepSpeed checkpoint in {folder / tag}")
        state: dict[str, Any] = torch.load(
            folder / tag / CLIENT_STATE.format(rank=dist.get_rank()), weights_only=True
        )
        return state

    def _set_learning_rate(self) -> float:
        settings = self._settings
        rate = settings.learning_rate * learning_rate_factor(
            self.optimizer_steps,
            warmup=settings.warmup_steps,
            horizon=settings.horizon_steps,
            kind=settings.schedule,
        )
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _full_shape(self, parameter: Any) -> torch.Size:  # noqa: ANN401
        shape: torch.Size = parameter.ds_shape if self._settings.zero_stage == 3 else parameter.shape
        return shape


def _deepspeed_config(settings: TrainSettings) -> dict[str, Any]:
    return {
        # The caller owns batches and accumulation; DeepSpeed only needs numbers that agree.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": settings.zero_stage},
        # torch's AdamW needs no compilation, unlike DeepSpeed's own.
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": settings.max_grad_norm,
        "bf16": {"enabled": settings.dtype == "bfloat16"},
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
    }
