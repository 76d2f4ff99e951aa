"""Why a job waits, in plain sentences, with what a person can do about it.

Slurm has more than a hundred reasons and adds to them; one that is not listed here is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """`sentence` says why the job waits; `advice` what to do, empty where waiting is right.

    `stuck` says that the job will not start unless somebody does something.
    """

    sentence: str
    advice: str = ""
    stuck: bool = False


_RELEASE = "`scontrol release {job}`"
_LIMIT = "ask for less, or wait for your or your account's other jobs; `sacctmgr show qos` lists the limits"
_ASK_FOR_LESS = "this never fits: cancel it, ask for less and submit again"


def _wait(sentence: str, advice: str = "") -> Explanation:
    return Explanation(sentence, advice)


def _stuck(sentence: str, advice: str) -> Explanation:
    return Explanation(sentence, advice, stuck=True)


_REASONS: dict[str, Explanation] = {
    "None": _wait("Slurm has not looked at the job yet"),
    "Resources": _wait("it is next, and waits until enough nodes, cores, memory or GPUs are free"),
    "Priority": _wait("jobs of a higher priority are before it"),
    "Dependency": _wait("it waits for another job that it depends on", "`scontrol show job {job}` names it"),
    "DependencyNeverSatisfied": _stuck(
        "the job that it depends on did not end as asked", "cancel it and submit again"
    ),
    "BeginTime": _wait(
        "its begin time has not come; a requeued job waits some two minutes",
        "`scontrol update JobId={job} StartTime=now` starts a requeued job earlier",
    ),
    "JobHeldUser": _stuck("it is held by its user", _RELEASE),
    "JobHeldAdmin": _stuck("it is held by an operator", "ask the operators why; only they can release it"),
    "JobHoldMaxRequeue": _stuck(
        "it was requeued too often, and is held", f"look at its logs, then {_RELEASE}"
    ),
    "launch failed requeued held": _stuck(
        "its launch failed on a node, so it was requeued and is held",
        "look at `sinfo -R` for the node, exclude it (`scontrol update JobId={job} ExcNodeList=NODE`), then "
        + _RELEASE,
    ),
    "job requeued in held state": _stuck("it was requeued and is held", _RELEASE),
    "JobLaunchFailure": _stuck("it could not be launched on a node", f"look at `sinfo -R`, then {_RELEASE}"),
    "BadConstraints": _stuck("no node is as asked", _ASK_FOR_LESS + " (slurm.constraint, slurm.resources)"),
    "PartitionTimeLimit": _stuck(
        "its time is over the limit of the partition",
        "lower slurm.time_minutes and submit again, or `scontrol update JobId={job} TimeLimit=MINUTES`",
    ),
    "PartitionNodeLimit": _stuck(
        "it asks for more nodes than the partition has or allows",
        _ASK_FOR_LESS + " or take another slurm.partition",
    ),
    "PartitionConfig": _stuck(
        "no node of the partition is as large as asked (cores, memory, GPUs or number of nodes)",
        _ASK_FOR_LESS + " (slurm.resources, slurm.partition)",
    ),
    "PartitionDown": _wait("the partition is down", "ask the operators, or take another slurm.partition"),
    "PartitionInactive": _wait(
        "the partition is inactive", "ask the operators, or take another slurm.partition"
    ),
    "ReqNodeNotAvail": _wait(
        "a node that it needs is down, drained or reserved",
        "`sinfo -R` and `scontrol show reservation` say which; a maintenance may begin before its time limit",
    ),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": _wait(
        "nodes that it needs are down, drained or reserved", "`sinfo -R` says which and why"
    ),
    "NodeDown": _wait("a node that it needs is down", "`sinfo -R` says which and why"),
    "Reservation": _wait("its reservation has not begun", "`scontrol show reservation`"),
    "ReservationDeleted": _stuck("its reservation was deleted", "cancel it and submit again without"),
    "Licenses": _wait("it waits for a licence", "`scontrol show licenses` says who has them"),
    "InvalidAccount": _stuck("its account is not valid", "set slurm.account and submit again"),
    "InvalidQOS": _stuck("its QOS is not valid", "set slurm.qos and submit again"),
    "QOSNotAllowed": _stuck(
        "its QOS is not allowed for the account or partition", "set slurm.qos and submit again"
    ),
    "AccountNotAllowed": _stuck(
        "its account may not use the partition", "set slurm.account or slurm.partition"
    ),
    "JobArrayTaskLimit": _wait("other tasks of its array run"),
    "Prolog": _wait("the prolog is still running on its nodes"),
    "Cleaning": _wait("it is being requeued, and its last start is being cleaned up"),
    "SystemFailure": _stuck("Slurm, a file system or the network failed", "ask the operators"),
    "OutOfMemory": _stuck("it took more memory than it asked for", "raise slurm.resources and submit again"),
    "Prolog_Failed": _stuck("the prolog failed on a node", f"look at `sinfo -R`, then {_RELEASE}"),
    "FedJobLock": _wait("the clusters of the federation are agreeing on who runs it"),
    "BurstBufferResources": _wait("it waits for burst buffers"),
    "BurstBufferStageIn": _wait("its files are being staged in"),
}
# A limit of a QOS, an association or the site; what is limited is in the name.
_LIMITS = (
    (
        re.compile(r"QOSMaxWall.*|AssocMaxWall.*|QOSTimeLimit|AssociationTimeLimit", re.IGNORECASE),
        _stuck("its time is over a limit of {name}", "lower slurm.time_minutes and submit again"),
    ),
    (
        re.compile(r"(QOSMax\w*|MaxTRES\w*|AssocMax\w*)(PerJob\w*|PerNode\w*)(Limit)?", re.IGNORECASE),
        _stuck("one job may not have as much as it asks for ({name})", "ask for less and submit again"),
    ),
    (
        re.compile(r"QOSMin.*|AssocMin.*", re.IGNORECASE),
        _stuck(
            "it asks for less than the QOS or account demands ({name})",
            "`sacctmgr show qos` lists the limits",
        ),
    ),
    (
        re.compile(r"QOS(Grp|Max|Job|Resource|Usage).*", re.IGNORECASE),
        _wait("a limit of the QOS is reached ({name})", _LIMIT),
    ),
    (
        re.compile(r"(Assoc|Association|MaxSubmitJobs|MaxJobs|AssocGrp|Grp).*", re.IGNORECASE),
        _wait("a limit of your account is reached ({name})", _LIMIT),
    ),
)


def _spelling(reason: str) -> str:
    return re.sub(r"[\s_]+", "", reason).lower()


_BY_SPELLING = {_spelling(name): found for name, found in _REASONS.items()}


def explain(reason: str, job_id: str) -> Explanation | None:
    """What a reason of squeue means for this job; None where it is not known.

    Versions of Slurm differ in blanks and underscores, and add details after a comma (`ReqNodeNotAvail,
    UnavailableNodes:node1`).
    """
    plain = reason.strip().strip("()")
    name, _, detail = (part.strip() for part in plain.partition(","))
    found = _BY_SPELLING.get(_spelling(plain))
    if found is not None:
        detail = ""
    else:
        found = _BY_SPELLING.get(_spelling(name)) or next(
            (limit for pattern, limit in _LIMITS if pattern.fullmatch(name)), None
        )
    if found is None:
        return None
    sentence = found.sentence.replace("{name}", name)
    shown = f"{sentence} ({detail})" if detail else sentence
    return Explanation(shown, found.advice.replace("{job}", job_id), found.stuck)
