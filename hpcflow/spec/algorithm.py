"""Hyper-parameters per algorithm; names and formulas as in `hpcflow.algorithms`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hpcflow.spec.fields import Count, Fraction, Model, Rule, refusal

Clip = Annotated[float, Field(gt=0, le=10)]


class Kl(Model):
    """KL to the reference: its estimator, where it enters, and its coefficient."""

    coefficient: Annotated[float, Field(ge=0, le=10)] = 0.02
    estimator: Literal["k1", "abs", "k2", "k3"] = "k1"
    placement: Literal["reward", "loss"] = "reward"
    target: Annotated[float, Field(gt=0, le=1000)] | None = None
    horizon: Count = 10_000

    @model_validator(mode="after")
    def _check(self) -> Kl:
        if self.target is not None and self.coefficient == 0:
            problem = "an adaptive coefficient that starts at 0 stays at 0"
            hint = "give kl.coefficient a value above 0, or leave kl.target out"
            raise refusal([Rule("target", problem, hint)])
        return self


class Ppo(Model):
    """PPO with GAE and a critic. Counts are per training step and global over all ranks."""

    name: Literal["ppo"] = "ppo"
    prompts_per_step: Count
    samples_per_prompt: Count = 1
    epochs: Count = 1
    minibatch_samples: Count
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Clip = 0.2
    dual_clip: Annotated[float, Field(gt=1, le=100)] | None = None
    value_clip: Clip | None = 0.2
    whiten_advantages: bool = True
    kl: Kl = Kl()
    missing_stop_penalty: Annotated[float, Field(ge=0, le=100)] = 0.0
