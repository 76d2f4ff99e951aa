"""Who has not said that it is ready: the plan's ranks without those in `endpoints.json`. Never waits."""

from __future__ import annotations

import msgspec

from hpcflow.observe.status import last_attempt
from hpcflow.plan.plan import Plan
from hpcflow.rundir import AttemptDir, RunDir

Endpoints = dict[str, list[dict[str, object]]]


def not_ready(run: RunDir) -> list[str]:
    """Ranks that are still waited for, as `actor.0`; [] before there is an attempt."""
    attempt = last_attempt(run)
    if attempt is None:
        return []
    try:
        plan = Plan.load(run.plan_json)
        ready = _ready(attempt)
    except (OSError, msgspec.DecodeError):
        return []
    return [
        f"{role.role}.{rank.rank}"
        for role in plan.roles
        for rank in role.ranks
        if (role.role, rank.rank) not in ready
    ]


def _ready(attempt: AttemptDir) -> set[tuple[str, object]]:
    """Role and rank of every endpoint that is published by now."""
    try:
        content = attempt.endpoints_json.read_bytes()
    except FileNotFoundError:
        return set()
    endpoints = msgspec.json.decode(content, type=Endpoints)
    return {(role, rank["rank"]) for role, ranks in endpoints.items() for rank in ranks}
