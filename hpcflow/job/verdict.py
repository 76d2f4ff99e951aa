"""What is known against whom, and which of it is the cause: pure functions of evidence.

A fault spreads: when a rank dies, its peers raise connection errors, the driver's call fails, the driver
exits. So a death, or a fault that names a cause of its own, outranks what may only be its consequence:
an exception in a role, an abort (collectives abort when a peer is lost), a call that timed out. Among
equals the earliest wins.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpcflow.observe.exit_report import CAUSES, Outcome
from hpcflow.rpc.identity import DRIVER
from hpcflow.signals import name_of


class Member(NamedTuple):
    """One process of an attempt; the driver is rank 0 of its own role."""

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role} rank {self.rank}"


THE_DRIVER = Member(DRIVER, 0)


@dataclass(frozen=True)
class Evidence:
    """Something that ends the attempt. `status` is an exit code, or minus a signal's number, or None.

    `host` is empty where it is the one that the member told of itself.
    """

    member: Member
    cause: str
    message: str
    at: float
    hint: str = ""
    status: int | None = None
    host: str = ""

    @property
    def weight(self) -> int:
        """0: a cause of its own. 1: may be a consequence. 2: surely seen late."""
        if self.cause in ("rpc_timeout", "silent"):
            return 2
        return int(self.cause == "role_error" or self.status == -signal.SIGABRT)


@dataclass(frozen=True)
class Verdict:
    """How the attempt ended."""

    outcome: Outcome
    evidence: Evidence


def judge(evidence: Iterable[Evidence]) -> Evidence:
    """The cause among all that is known."""
    return min(evidence, key=lambda item: (item.weight, item.at, (item.status or 0) >= 0))


def death(member: Member, status: int, at: float) -> Evidence:
    """Evidence of a process that ended without a word."""
    if status >= 0:
        message = f"{member} ended with exit code {status} without a fault report"
        return Evidence(member, "exited", message, at, "its log may say more", status)
    name = name_of(-status)
    hint = ""
    if status == -signal.SIGKILL:
        hint = "if nobody killed it, the kernel did for want of memory: see `dmesg`"
    return Evidence(member, "killed", f"{member} was ended by {name}", at, hint, status)


def reported(member: Member, cause: str, message: str, *, hint: str, at: float) -> Evidence:
    """Evidence that a process gave itself; a cause that is not in the list is an error of a role."""
    return Evidence(member, cause if cause in CAUSES else "role_error", message, at, hint)
