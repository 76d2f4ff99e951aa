"""A role that dies while training: the run ends within 5 s, says who it was, and leaves nothing behind."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.support.short_runs import Killed

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("run", "role", "rank"), [("straight", "actor", 0), ("spread", "rollout", 1)])
def test_a_killed_rank_ends_the_run_and_is_named(
    run: str, role: str, rank: int, request: pytest.FixtureRequest
) -> None:
    killed: Killed = request.getfixturevalue(run)
    report = killed.report
    assert (report.outcome, report.cause) == ("failed", "killed")
    assert (report.role, report.rank, report.host) == (role, rank, socket.gethostname())
    assert (report.signal, report.exit_code) == (signal.SIGKILL, None)
    assert killed.gone_after_s < 5
    assert killed.left == []

    assert killed.exit_code == 3, killed.printed
    assert f"{role} rank {rank} was ended by SIGKILL" in killed.printed
    assert (killed.status["state"], killed.status["exit"]["signal"]) == ("failed", signal.SIGKILL)
