"""What the driver tells: rows of metrics, its state, and the limits that end a blind run.

Reads nothing back but its own memory of a checkpoint. Rows are written once a step is whole.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from hpcflow.algorithms.masks import select
from hpcflow.driver.clock import StepClock
from hpcflow.driver.evaluate import HeldOutResult
from hpcflow.driver.experience import Experience
from hpcflow.driver.groups import Groups
from hpcflow.driver.learn import Learned, mean_loss, total
from hpcflow.errors import JobFault
from hpcflow.observe.metrics import MetricsWriter
from hpcflow.observe.state import StateFile
from hpcflow.roles.contract import UpdateReport

log = logging.getLogger(__name__)


@dataclass
class Reporter:
    """Writes metrics.jsonl and state.json; counts steps in a row with skipped optimizer steps."""

    metrics: MetricsWriter
    state: StateFile
    groups: Groups
    attempt: int
    max_skipped_steps: int
    skipped_streak: int = 0

    def phase(self, name: str, step: int) -> None:
        """The driver begins something."""
        self.state.update(phase=name)
        log.debug("step %d: %s", step, name)

    def trained(
        self, step: int, experience: Experience, learned: Learned, beta: float, clock: StepClock
    ) -> None:
        """A step is whole.

        Raises:
            JobFault: the KL is not finite, or in too many steps in a row some gradients were not.
        """
        seconds = clock.seconds()
        tokens = int(experience.mask_BT.sum())
        row = {
            **_sample_figures(experience),
            **_actor_figures(learned),
            **_critic_figures(learned),
            "kl": learned.kl,
            "kl_coefficient": beta,
            "response_tokens": tokens,
            "tokens_per_second": tokens / seconds["step"],
            "seconds": seconds,
            "resident_bytes": self.groups.resident_bytes(),
        }
        self._write("train", step, row)
        self.state.update(step=step)
        _check_kl(step, learned)
        self._check_skipped(step, learned)

    def evaluated(self, step: int, result: HeldOutResult, clock: StepClock) -> None:
        """The held-out set was scored."""
        row = {
            "score": result.score,
            "prompts": result.prompts,
            "faulty_samples": result.faulty,
            "seconds": clock.seconds(),
        }
        self._write("heldout", step, row)
        if step == 0:
            self.state.update(heldout_before=result.score, heldout=result.score)
        else:
            self.state.update(heldout=result.score)

    def saved(self, step: int, clock: StepClock) -> None:
        """A checkpoint is complete."""
        seconds = clock.seconds()["save"]
        self._write("save", step, {"seconds": {"save": seconds}})
        self.state.update(checkpoint_step=step)
        log.info("saved a checkpoint after step %d in %.1f s", step, seconds)

    def finished(self) -> None:
        """The last step is done and saved."""
        self.state.update(phase="done")

    def close(self) -> None:
        """Write what was held back."""
        self.state.flush()
        self.metrics.close()

    def memory(self) -> dict[str, Any]:
        """What a resumed run must know."""
        return {
            "skipped_streak": self.skipped_streak,
            "heldout_before": self.state.state.heldout_before,
            "heldout": self.state.state.heldout,
        }

    def remember(self, step: int, memory: dict[str, Any]) -> None:
        """Take over from the attempt that saved after `step`."""
        self.skipped_streak = memory["skipped_streak"]
        self.state.update(
            step=step,
            checkpoint_step=step,
            heldout_before=memory["heldout_before"],
            heldout=memory["heldout"],
        )

    def _write(self, kind: str, step: int, row: dict[str, Any]) -> None:
        head = {"kind": kind, "attempt": self.attempt, "step": step, "time": time.time()}
        self.metrics.write({**head, **row})

    def _check_skipped(self, step: int, learned: Learned) -> None:
        skipped = any(learned.actor[0].skipped) or any(learned.critic[0].skipped)
        self.skipped_streak = self.skipped_streak + 1 if skipped else 0
        if self.skipped_streak > self.max_skipped_steps:
            role = "actor" if any(learned.actor[0].skipped) else "critic"
            raise JobFault(
                f"gradients were not finite in {self.skipped_streak} steps in a row, up to step "
                f"{step}; no weight was changed by them",
                cause="non_finite",
                role=role,
                hint="lower the learning rate, or look for scores out of range in metrics.jsonl",
            )


def _check_kl(step: int, learned: Learned) -> None:
    if not math.isfinite(learned.kl):
        raise JobFault(
            f"the KL to the reference is {learned.kl} at step {step}: the policy is no longer a distribution",
            cause="non_finite",
            role="actor",
            hint="resume from the last checkpoint with a lower learning rate",
        )


def _sample_figures(experience: Experience) -> dict[str, Any]:
    mask_BT = experience.mask_BT
    valid_B = mask_BT.any(dim=1)
    drift_BT = select(experience.logprobs_BT - experience.rollout_logprobs_BT, mask_BT).abs()
    return {
        "reward": _mean(experience.scores_B[valid_B]),
        "samples": int(valid_B.sum()),
        "faulty_samples": int((~valid_B).sum()),
        "response_length": _mean(mask_BT.sum(dim=1)[valid_B].float()),
        "rollout_logprob_difference": float(drift_BT.max()),
        "rollout_logprob_difference_mean": _mean(drift_BT[mask_BT]),
    }


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0


def _actor_figures(learned: Learned) -> dict[str, Any]:
    reports = learned.actor
    tokens = max(1.0, total(reports, "tokens"))
    return {
        "loss": mean_loss(reports),
        "grad_norm": _last(reports[0].grad_norms),
        "learning_rate": _last(reports[0].learning_rates),
        "policy_kl": total(reports, "policy_kl") / tokens,
        "clip_fraction": total(reports, "clipped") / tokens,
        "ratio_max": max((report.maxima.get("ratio", 0.0) for report in reports), default=0.0),
        "optimizer_steps": len(reports[0].losses),
        "skipped": sum(reports[0].skipped),
    }


def _critic_figures(learned: Learned) -> dict[str, Any]:
    reports: list[UpdateReport] = learned.critic
    return {
        "value_loss": mean_loss(reports),
        "critic_grad_norm": _last(reports[0].grad_norms),
        "critic_skipped": sum(reports[0].skipped),
    }


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
