"""The spec's algorithm as functions of tensors; the one place where the two meet.

Driver and roles both use it: it belongs to the contract of what a training step means.
"""

from __future__ import annotations

from hpcflow.algorithms.kl import AdaptiveKl, FixedKl, KlController
from hpcflow.algorithms.ppo import Ppo
from hpcflow.spec import algorithm as spec


def ppo_of(wanted: spec.Ppo) -> Ppo:
    """The algorithm with the spec's hyper-parameters."""
    return Ppo(
        gamma=wanted.gamma,
        lam=wanted.gae_lambda,
        clip_low=wanted.clip_low,
        clip_high=wanted.clip_high,
        dual_clip=wanted.dual_clip,
        value_clip=wanted.value_clip,
        kl_estimator=wanted.kl.estimator,
        kl_placement=wanted.kl.placement,
        whiten_advantages=wanted.whiten_advantages,
    )


def kl_controller_of(wanted: spec.Kl) -> KlController:
    """Adaptive where the spec gives a target, else fixed."""
    if wanted.target is None:
        return FixedKl(wanted.coefficient)
    return AdaptiveKl(wanted.coefficient, target=wanted.target, horizon=wanted.horizon)
