"""The state of a run on this machine: whether its processes live, then what the files say."""

from __future__ import annotations

from hpcflow.observe.job import JobRecord
from hpcflow.observe.processes import Liveness, ProcessMark
from hpcflow.observe.signs import Judgement, Signs, last_seen


def liveness(leader: ProcessMark | None, job: JobRecord) -> Liveness:
    """Of the supervisor; before it has said who it is, of the process that is starting it."""
    mark = leader or job.controller
    return "unknown" if mark is None else mark.liveness()


def judge(signs: Signs, job: JobRecord, alive: Liveness) -> Judgement:
    """`alive` was found out before the signs were read: a process that is gone has published its report."""
    if signs.report is not None:
        return Judgement(signs.report.outcome)
    if alive == "gone":
        return Judgement("lost", _lost(signs))
    if alive == "unknown" and (signs.age_s is None or not signs.fresh):
        mark = signs.supervisor or job.controller
        where = "runs elsewhere" if mark is None else f"runs on {mark.host}"
        return Judgement("unknown", f"{where}; {last_seen(signs.age_s)}")
    return Judgement(signs.progress)


def _lost(signs: Signs) -> str:
    if signs.attempt is None:
        return "the job ended before its supervisor began"
    return f"the supervisor is gone without an exit report; {last_seen(signs.age_s)}"
