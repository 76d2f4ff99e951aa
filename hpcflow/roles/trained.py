"""What actor and critic share: one training step as optimizer steps, and their checkpoints.

All ranks of a role run the same calls in the same order; the engine's collectives are entered by every
rank, also by one whose rows have no trainable token. Knows no loss: callers give it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from hpcflow.plan.plan import TrainBatching
from hpcflow.roles.batches import Rows, rows_of, split_index
from hpcflow.roles.contract import Minibatches, TokenBatch, UpdateReport
from hpcflow.roles.setting import RoleSetting
from hpcflow.roles.train_engine import TrainEngine, TrainSettings
from hpcflow.spec.roles import Trained

ENGINE_TAG = "engine"


def train_settings(spec: Trained, batching: TrainBatching, setting: RoleSetting) -> TrainSettings:
    """The engine's settings from spec and plan."""
    optimizer = spec.optimizer
    return TrainSettings(
        zero_stage=spec.zero_stage,
        dtype=setting.spec.model.dtype,
        device=setting.device,
        learning_rate=optimizer.learning_rate,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        schedule=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        horizon_steps=batching.optimizer_steps_total,
        gradient_checkpointing=spec.gradient_checkpointing,
    )


@dataclass
class Sums:
    """Masked sums and maxima over this rank's micro-batches."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: Tensor) -> None:
        """Add a detached scalar."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def highest(self, name: str, value: Tensor) -> None:
        """Keep the largest."""
        self.maxima[name] = max(self.maxima.get(name, float("-inf")), float(value))


RowsLoss = Callable[[Rows, float], Tensor]


@dataclass(frozen=True)
class Update:
    """One training step of a trained role: its engine, micro-batch rows and device."""

    engine: TrainEngine
    microbatch: int
    device: str

    def run(self, batch: TokenBatch, minibatches: Minibatches, loss: RowsLoss, sums: Sums) -> UpdateReport:
        """Do every optimizer step; `loss(rows, denominator)` is a micro-batch's share of the loss.

        `sums` is what `loss` adds its metrics to. A step without a trainable token on any rank is left
        out by all ranks alike.
        """
        report = UpdateReport([], [], [], [], sums.sums, sums.maxima)
        for index, denominator in zip(minibatches.order, minibatches.denominators.tolist(), strict=True):
            if denominator == 0:
                continue
            total = [0.0]
            micro = [
                self._micro_loss(rows_of(batch, part, self.device), denominator, loss, total)
                for part in split_index(index, self.microbatch)
            ]
            step = self.engine.minimise(micro)
            report.losses.append(total[0])
            report.grad_norms.append(step.grad_norm)
            report.learning_rates.append(step.learning_rate)
            report.skipped.append(step.skipped)
        return report

    @staticmethod
    def _micro_loss(
        rows: Rows, denominator: float, loss: RowsLoss, total: list[float]
    ) -> Callable[[], Tensor]:
        def compute() -> Tensor:
            value = loss(rows, denominator)
            total[0] += float(value.detach())
            return value

        return compute


def save_trained(engine: TrainEngine, folder: Path, setting: RoleSetting) -> None:
    """Write this role's share of a checkpoint into `folder/ROLE`: engine and RNG of every rank."""
    states = {"rng_cpu": torch.get_rng_state()}
    if setting.device == "cuda":
        states["rng_cuda"] = torch.cuda.get_rng_state()
    engine.save(folder / setting.role, ENGINE_TAG, states)


def load_trained(engine: TrainEngine, folder: Path, setting: RoleSetting) -> None:
    """Read what `save_trained` wrote, by the same number of ranks."""
    states = engine.load(folder / setting.role, ENGINE_TAG)
    torch.set_rng_state(states["rng_cpu"])
    if setting.device == "cuda":
        torch.cuda.set_rng_state(states["rng_cuda"])
