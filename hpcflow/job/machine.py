"""The life of an attempt as a state machine: events and the time go in, actions come out.

Never touches a process, a socket or the clock. Rules:

- The first failure ends the attempt, after `settle_s` where the evidence may only be a consequence of a
  death that is not known yet (`verdict`).
- Whatever is not optional is essential: also a clean exit, before the release, is a failure. Only the driver
  may end the run: exit code 0 is done, 75 is stopped.
- What is optional (some commands) may fail, be late or end: it is `gone` then, and the run goes on.
- Preemption outranks death: while a report of TERM is younger than `preemption_s`, a death is part of
  the stop. The driver goes on saving until it leaves or fails; either way the outcome is `stopped`.
- INT is what a person sends, TERM and USR2 are what a scheduler sends: only those want the job requeued.
- A first request to stop is passed on to the driver; before all ranks are ready nothing is lost, so it
  ends the attempt. A second INT or TERM kills everything.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpcflow.errors import EXIT_OK, EXIT_REQUEUE
from hpcflow.job.verdict import THE_DRIVER, Evidence, Member, Verdict, death, judge
from hpcflow.observe.exit_report import Outcome


@dataclass(frozen=True)
class Limits:
    """Times in seconds: to get ready, to stop, how long TERM explains deaths, then the last stages.

    `silent_s` is how old the last heartbeat may be, `end_s` is from TERM to KILL after a failure, `leave_s`
    the time that released roles have.
    """

    start_s: float
    stop_s: float
    preemption_s: float
    silent_s: float
    settle_s: float = 1.0
    end_s: float = 2.5
    leave_s: float = 10.0


class Action(enum.Enum):
    """What the supervisor is to do now, in this order."""

    ASK_DRIVER = "send USR2 to the driver"
    RELEASE = "tell all processes to leave"
    TERMINATE = "send TERM to all processes"
    KILL = "kill all processes with their descendants"


class Machine:
    """One attempt; every event may return actions. `over` when no process is left."""

    def __init__(
        self,
        roles: Sequence[Member],
        limits: Limits,
        now: float,
        *,
        steps: Iterable[Member] = (),
        optional: Collection[str] = (),
    ) -> None:
        """`steps` are the job steps in which ranks are, if they are in any.

        `optional` are the roles, and the steps that hold no others, which the run can go on without.
        """
        self.limits = limits
        self.alive = {*roles, *steps, THE_DRIVER}
        self.not_ready = {member for member in roles if member.role not in optional}
        self.gone: dict[Member, str] = {}
        self.verdict: Verdict | None = None
        self.stopped_by_person = False
        self.statuses: dict[Member, int] = {}
        self._optional = frozenset(optional)
        self._evidence: list[Evidence] = []
        self._reporters: set[Member] = set()
        self._beats: dict[Member, float] = {}
        self._start_by = now + limits.start_s
        self._decide_at = float("inf")
        self._kill_at = float("inf")
        self._stop_by: float | None = None
        self._own_requests = 0
        self._last_term = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the attempt has a verdict and no process of its own any more."""
        return self.verdict is not None and not self.alive

    @property
    def stopping(self) -> bool:
        """Whether somebody asked to stop."""
        return self._stop_by is not None

    def ready(self, member: Member) -> list[Action]:
        """A rank serves its contract."""
        self.not_ready.discard(member)
        return []

    def beat(self, member: Member, now: float) -> list[Action]:
        """A process is alive."""
        self._beats[member] = now
        return []

    def fault(self, reporter: Member, evidence: Evidence) -> list[Action]:
        """A process says why it is about to leave."""
        self._reporters.add(reporter)
        if evidence.member.role in self._optional or reporter.role in self._optional:
            self._miss([evidence.member], evidence.message, evidence.at)
            return []
        if self.verdict is None and not self._preempted(evidence.at):
            self._add(evidence)
        return []

    def exited(self, member: Member, status: int, now: float) -> list[Action]:
        """A process ended: `status` is its exit code, or minus the number of a signal."""
        if member not in self.alive:  # told late: its step had ended before
            return []
        self.alive.discard(member)
        self.statuses[member] = status
        if self.verdict is not None:
            return []
        if member.role in self._optional:
            self._miss([member], death(member, status, now).message, now)
            return []
        if member == THE_DRIVER and status in (EXIT_OK, EXIT_REQUEUE):
            done = status == EXIT_OK
            cause, message = ("done", "all steps are done") if done else ("stopped", "stopped")
            outcome: Outcome = "done" if done else "stopped"
            return self._conclude(outcome, Evidence(member, cause, message, now), now)
        if member == THE_DRIVER and self.stopping and status == -signal.SIGUSR2:
            message = "stopped before the driver could listen to the request"
            return self._conclude("stopped", Evidence(member, "stopped", message, now), now)
        if self._preempted(now):
            if member != THE_DRIVER:
                return []
            message = f"the driver ended ({status}) before its checkpoint was complete"
            return self._conclude("stopped", Evidence(member, "preempted", message, now), now)
        if member not in self._reporters:
            self._add(death(member, status, now))
        return []

    def step_ended(
        self, step: Member, ranks: Iterable[Member], evidence: Evidence, now: float
    ) -> list[Action]:
        """A step is over and its ranks are gone with it; `evidence` counts if some had still been there."""
        cut_off = self.alive.intersection(ranks)
        self.alive -= {step, *cut_off}
        self._miss((rank for rank in cut_off if rank.role in self._optional), evidence.message, now)
        cut_off = {rank for rank in cut_off if rank.role not in self._optional}
        if self.verdict is None and cut_off and not self._preempted(now):
            self._add(evidence)
        return []

    def signalled(self, signum: int, now: float) -> list[Action]:
        """A process reports that it received a signal, which a scheduler sends to all of them."""
        if self.verdict is not None:
            return []
        if signum == signal.SIGTERM:
            self._last_term = now
        return self._ask_to_stop(now)

    def requested(self, signum: int, now: float) -> list[Action]:
        """The supervisor itself received TERM, INT or USR2."""
        if signum != signal.SIGUSR2:
            self._own_requests += 1
        if self._own_requests > 1:
            if self.verdict is None:
                message = f"ended at once by a second request ({signal.Signals(signum).name})"
                evidence = Evidence(THE_DRIVER, "aborted", message, now)
                self.verdict = Verdict("stopped", evidence)
            self._kill_at = now
            return [Action.RELEASE, Action.KILL]
        if self.verdict is not None:
            return []
        if signum == signal.SIGTERM:
            self._last_term = now
        if not self.stopping:
            self.stopped_by_person = signum == signal.SIGINT
        return self._ask_to_stop(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed; call it after every batch of events."""
        if self.verdict is not None:
            return [Action.KILL] if now >= self._kill_at and self.alive else []
        ended = [member for member in self.statuses if member.role not in self._optional]
        if self._stop_by is not None and now >= self._stop_by and ended:
            message = "processes were ended from outside before the checkpoint was complete"
            evidence = Evidence(min(ended), "preempted", message, now)
            return self._conclude("stopped", evidence, now)
        self._look_at_clock(now)
        if self._evidence and now >= self._decide_at:
            return self._conclude("failed", judge(self._evidence), now)
        return []

    def _look_at_clock(self, now: float) -> None:
        if self._evidence:
            return
        if self.not_ready and now >= self._start_by:
            first, *_ = missing = sorted(self.not_ready)
            names = ", ".join(str(member) for member in missing)
            message = f"not ready within {self.limits.start_s:g} s: {names}"
            hint = "health.start_timeout_s is the limit; the logs show what each was doing"
            self._add(Evidence(first, "start_timeout", message, now, hint))
        if self._stop_by is not None and now >= self._stop_by:
            message = f"the driver did not stop within {self.limits.stop_s:g} s"
            hint = "slurm.signal_lead_s is the time for the last step and its checkpoint"
            self._add(Evidence(THE_DRIVER, "stop_timeout", message, now, hint))
        for member, last in self._beats.items():
            essential = member.role not in self._optional
            if essential and member in self.alive and now - last > self.limits.silent_s:
                message = f"{member} has sent no heartbeat for {now - last:.0f} s"
                self._add(Evidence(member, "silent", message, now))

    def _miss(self, members: Iterable[Member], why: str, now: float) -> None:
        """Note what the run goes on without, by the first reason that is known."""
        if self.verdict is None and not self._preempted(now):
            self.gone |= {member: why for member in members if member not in self.gone}

    def _add(self, evidence: Evidence) -> None:
        self._evidence.append(evidence)
        wait_s = self.limits.settle_s if evidence.weight else 0.0
        self._decide_at = min(self._decide_at, evidence.at + wait_s)

    def _preempted(self, now: float) -> bool:
        return now - self._last_term < self.limits.preemption_s

    def _ask_to_stop(self, now: float) -> list[Action]:
        if self.stopping:
            return []
        self._stop_by = now + self.limits.stop_s
        if not self.not_ready:
            return [Action.ASK_DRIVER]
        message = "stopped before all ranks were ready"
        return self._conclude("stopped", Evidence(THE_DRIVER, "stopped", message, now), now)

    def _conclude(self, outcome: Outcome, evidence: Evidence, now: float) -> list[Action]:
        self.verdict = Verdict(outcome, evidence)
        if outcome == "failed" or THE_DRIVER in self.alive:
            self._kill_at = now + self.limits.end_s
            return [Action.RELEASE, Action.TERMINATE]
        self._kill_at = now + self.limits.leave_s
        return [Action.RELEASE]
