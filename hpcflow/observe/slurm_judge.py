"""The state of a run on Slurm: a pure function of the run's files and of one answer of the controller.

- An exit report decides how an attempt ended, the controller whether the job is over: Slurm may requeue it.
- No answer, an empty one and a state that nobody here knows are never proof of an end, and never good news.
- What ended without a report is lost, whatever Slurm calls it.
"""

from __future__ import annotations

from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.signs import FRESH_S, Judgement, Signs, duration, last_seen
from hpcflow.observe.slurm_look import SlurmLook

# A report that another node has written may be seen so much later on a shared file system.
REPORT_GRACE_S = 30.0
# Clocks of nodes and controller differ; an attempt that began so long before its job is an earlier one.
CLOCKS_DIFFER_S = 60.0


def decided(signs: Signs) -> bool:
    """Whether the files alone tell how the run ended: nothing restarts it, so nobody needs to be asked."""
    return signs.cancelled or (signs.report is not None and signs.report.outcome == "done")


def judge(signs: Signs, look: SlurmLook | None, now: float) -> Judgement:
    """`look` was taken before the signs were read; None where it was not needed."""
    if look is None or decided(signs):
        return _cancelled(signs) if signs.cancelled else _ended(signs)
    if look.answer == "forgotten":
        return _forgotten(signs)
    if look.unanswered and not (look.known and now - look.asked <= FRESH_S):
        return _unanswered(signs, look)
    return _listed(signs, look)


def _ended(signs: Signs) -> Judgement:
    assert signs.report is not None
    return Judgement(signs.report.outcome)


def _cancelled(signs: Signs) -> Judgement:
    """A job that was cancelled while it waited, for the first time or to start again."""
    if signs.attempt is None:
        return Judgement("stopped", "cancelled before it started")
    outcome = "stopped" if signs.report is None else signs.report.outcome
    return Judgement(outcome, f"cancelled while it waited to start again; {how_it_ended(signs)}")


def _forgotten(signs: Signs) -> Judgement:
    if signs.report is not None:
        return _ended(signs)
    if signs.fresh:
        # It may be the wrong cluster that was asked.
        return Judgement("unknown", f"Slurm knows no such job, but it was {_fresh_sign(signs)}")
    if signs.attempt is None:
        return Judgement("lost", "the job ended before its supervisor began; Slurm no longer knows it")
    gone = "the job has left Slurm's memory without an exit report"
    return Judgement("lost", f"{gone}; {last_seen(signs.age_s)}")


def _fresh_sign(signs: Signs) -> str:
    if signs.age_s is None:
        return f"submitted {duration(signs.submitted_s)} ago"
    return last_seen(signs.age_s)


def _unanswered(signs: Signs, look: SlurmLook) -> Judgement:
    silent = "Slurm's answer was empty"
    if look.answer == "silent":
        silent = f"Slurm did not answer ({look.message})"
    if signs.report is not None:
        return Judgement(signs.report.outcome, f"{silent}: the job may wait to start again")
    if signs.fresh:
        return Judgement(signs.progress, f"{silent}; {_fresh_sign(signs)}")
    return Judgement("unknown", f"{silent}; {last_seen(signs.age_s)}")


def _listed(signs: Signs, look: SlurmLook) -> Judgement:
    match look.phase:
        case "held" | "queued" | "starting" | "paused":
            before = how_it_ended(signs) if signs.attempt and look.phase != "paused" else ""
            return Judgement("queued", _sentence(before, why(look)))
        case "running":
            return _running(signs, look)
        case "ending":
            doing = f"the job {look.meaning} ({look.state})"
            return Judgement("ending", _sentence(_reported(signs.report), doing))
        case "over":
            return _over(signs, look)
        case "unknown":
            problem = f"Slurm calls the job {look.state}, which this version does not know"
            return Judgement("unknown", _sentence(problem, _reported(signs.report)))


def why(look: SlurmLook) -> str:
    """Why the job waits, and what to do; a sentence that stays the same as long as that does."""
    return _sentence(look.meaning, f"to do: {look.advice}" if look.stuck else look.advice)


def _running(signs: Signs, look: SlurmLook) -> Judgement:
    if signs.attempt is None:
        return Judgement("starting", "the job runs; its supervisor has not begun")
    if _earlier(signs, look):
        return Judgement("starting", _sentence(how_it_ended(signs), "the job has started again"))
    if signs.report is not None:
        return Judgement("ending", _sentence(_reported(signs.report), f"the job is still {look.state}"))
    return Judgement(signs.progress)


def _over(signs: Signs, look: SlurmLook) -> Judgement:
    if look.state == "CANCELLED" and not look.nodes:
        return _cancelled(signs)
    said = f"Slurm: {look.state}, {look.meaning}"
    if look.may_return and signs.age_s is not None and signs.age_s <= REPORT_GRACE_S:
        return Judgement("ending", _sentence(_reported(signs.report), said))
    if signs.attempt is None:
        return Judgement("lost", f"the job ended before its supervisor began; {said}")
    if _earlier(signs, look):
        again = "the job started again and ended before its supervisor began"
        return Judgement("lost", _sentence(how_it_ended(signs), again, said))
    if signs.report is not None:
        return Judgement(signs.report.outcome)
    if signs.age_s is not None and signs.age_s <= REPORT_GRACE_S:
        return Judgement("ending", f"{said}; its exit report is not there yet")
    return Judgement("lost", f"the job ended without an exit report; {said}; {last_seen(signs.age_s)}")


def _earlier(signs: Signs, look: SlurmLook) -> bool:
    """Whether the newest attempt is of an earlier start of the job, and the present one has none yet."""
    if look.start is None or signs.supervisor is None or signs.fresh:
        return False
    return signs.supervisor.started < look.start - CLOCKS_DIFFER_S


def how_it_ended(signs: Signs) -> str:
    """`attempt 2 stopped: preempted`, of an attempt that is over."""
    assert signs.attempt is not None
    name = f"attempt {signs.attempt.number}"
    return _reported(signs.report) or f"{name} left no exit report"


def _reported(report: ExitReport | None) -> str:
    if report is None:
        return ""
    cause = "" if report.cause == report.outcome else f" ({report.cause})"
    return f"attempt {report.attempt} is {report.outcome}{cause}"


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
