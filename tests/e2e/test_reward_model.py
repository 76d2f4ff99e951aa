"""`configs/ppo-reward-model.yaml`: a transformers model scores, and USR2 to the supervisor stops the run."""

from __future__ import annotations

import signal

import pytest

from hpcflow.observe.exit_report import ExitReport
from tests.support.real_runs import REPOSITORY, RealRun, Site

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

# One optimizer step a training step: the policy that is trained is still the one that sampled.
SETTINGS = (
    "algorithm.prompts_per_step=32",
    "algorithm.minibatch_samples=64",
    "algorithm.epochs=1",
    "roles.actor.microbatch_per_gpu=32",
    "roles.critic.microbatch_per_gpu=32",
    "evaluation.prompts=64",
)
STEPS = 4


@pytest.fixture(scope="session")
def scored_by_model(site: Site) -> tuple[RealRun, ExitReport]:
    """Four steps and more, then USR2."""
    real = site.submit("scored-by-model", SETTINGS, config=REPOSITORY / "configs" / "ppo-reward-model.yaml")
    real.wait_for_step(STEPS)
    real.supervisor().send_signal(signal.SIGUSR2)
    return real, real.ended()


def test_usr2_saves_and_stops(scored_by_model: tuple[RealRun, ExitReport]) -> None:
    real, report = scored_by_model
    assert (report.outcome, report.cause) == ("stopped", "stopped")
    assert real.run.checkpoint_steps() == [report.step] == [real.written()[-1]["step"]]
    assert real.left() == []


def test_every_sample_is_scored_and_scores_differ(scored_by_model: tuple[RealRun, ExitReport]) -> None:
    real, _ = scored_by_model
    rows = real.rows()
    assert [row["samples"] for row in rows] == [64] * len(rows)
    assert len({row["reward"] for row in rows}) == len(rows)
    assert real.heldout()[0] is not None


def test_the_first_optimizer_step_sees_a_ratio_of_1(scored_by_model: tuple[RealRun, ExitReport]) -> None:
    real, _ = scored_by_model
    steps = len(real.rows())
    assert real.figures("optimizer_steps") == [1] * steps
    assert real.figures("ratio_max") == pytest.approx([1.0] * steps, abs=1e-5)
    assert real.figures("policy_kl") == pytest.approx([0.0] * steps, abs=1e-8)
    assert real.figures("clip_fraction") == [0.0] * steps


def test_the_reference_stays_behind(scored_by_model: tuple[RealRun, ExitReport]) -> None:
    kl = scored_by_model[0].figures("kl")
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert min(map(abs, kl[1:])) > 1e-5
