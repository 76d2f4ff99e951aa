"""Who has not said that it is ready: the plan's ranks without those in `endpoints.json`. Never waits."""

from __future__ import annotations

import msgspec

from hpcflow.observe.signs import last_attempt
from hpcflow.plan.plan import Plan
from hpcflow.rpc.identity import RankEndpoint
from hpcflow.rundir import AttemptDir, RunDir

Endpoints = dict[str, list[RankEndpoint]]


def not_ready(run: RunDir) -> list[str]:
    """Ranks that are still waited for, as `actor.0`; [] before there is an attempt."""
    attempt = last_attempt(run)
    if attempt is None:
        return []
    try:
        plan = Plan.load(run.plan_json)
    except (OSError, msgspec.MsgspecError):
        return []
    ready = {(role, rank.rank) for role, ranks in read_endpoints(attempt).items() for rank in ranks}
    return [
        f"{role.role}.{rank.rank}"
        for role in plan.roles
        for rank in role.ranks
        if (role.role, rank.rank) not in ready
    ]


def read_endpoints(attempt: AttemptDir) -> Endpoints:
    """What ranks have published by now; {} where nothing is, or nothing that can be read."""
    try:
        return msgspec.json.decode(attempt.endpoints_json.read_bytes(), type=Endpoints)
    except (OSError, msgspec.DecodeError):
        return {}
