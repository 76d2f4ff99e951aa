"""Every role on two ranks, actor under ZeRO-3 and critic under ZeRO-1: the same run, spread."""

from __future__ import annotations

import pytest

from tests.support.short_runs import Killed

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]


def test_weights_reach_both_rollout_ranks(spread: Killed) -> None:
    assert max(row["rollout_logprob_difference"] for row in spread.rows) < 1e-4


def test_ranks_do_not_change_what_is_computed(straight: Killed, spread: Killed) -> None:
    for key in ("loss", "value_loss", "grad_norm", "critic_grad_norm", "reward", "kl", "policy_kl"):
        alone = straight.figures(key, until=3)
        together = spread.figures(key, until=3)
        assert together == pytest.approx(alone, rel=1e-4, abs=1e-5), key


def test_every_rank_tells_its_memory(spread: Killed) -> None:
    roles = ("actor", "critic", "reference", "reward", "rollout")
    ranks = {f"{role}.{rank}" for role in roles for rank in range(2)}
    assert ranks <= set(spread.rows[-1]["resident_bytes"])
