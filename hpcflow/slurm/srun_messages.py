"""What `srun` writes on its standard error about a step that failed: which node, and why.

Slurm's wording changes between versions, so what is not recognized is left to the reader of the log. Lines
that the step's own programs wrote are never taken for Slurm's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StepFailure:
    """`message` is Slurm's own line, without its prefix; `node` is empty where none is named.

    `waiting` says that nothing failed yet: the step waits for resources that another one has.
    """

    node: str
    message: str
    hint: str = ""
    waiting: bool = False


@dataclass(frozen=True)
class _Pattern:
    text: re.Pattern[str]
    hint: str = ""
    waiting: bool = False


_PREFIX = re.compile(
    r"^(?P<program>srun|slurmstepd|slurmd)(?:-(?P<node>[A-Za-z0-9._-]+))?: (?:(?:error|fatal): )?"
)
_TASKS = r"(?P<node>[A-Za-z0-9._-]+(?:\[[0-9,-]+\][A-Za-z0-9._-]*)?): tasks? [0-9,\[\]-]+: "
_NOT_IN_THE_JOB = "what the step asks for is not in the job: see the srun line in the supervisor's log"

# The most telling one first: causes, then how a task ended, then what `srun` did because of that.
_PATTERNS = (
    _Pattern(
        re.compile(r"Task launch for (?:StepId=)?\S+ failed on node (?P<node>\S+): .*"),
        "is the node up (`sinfo -R`)? are the interpreter and the run folder on a shared file system?",
    ),
    _Pattern(
        re.compile(r"Node failure on (?P<node>\S+?)\.?"),
        "`sinfo -R` tells what the site knows of it; `--exclude` it if it fails again",
    ),
    _Pattern(
        re.compile(_TASKS + r"Out Of Memory"),
        "give the roles of this step more memory (slurm.resources)",
    ),
    _Pattern(
        re.compile(
            r"(?:Detected \d+ oom[_-]kill event.*|.*exceeded (?:step|job) memory limit.*|.*\bOOM Killed\b.*)",
            re.IGNORECASE,
        ),
        "give the roles of this step more memory (slurm.resources)",
    ),
    _Pattern(
        re.compile(r"(?:execve\(\): .*|.*_fork_exec.*|couldn't chdir to .*)"),
        "are the interpreter and the run folder on a file system that every node has?",
    ),
    _Pattern(re.compile(r"Step requested .*"), _NOT_IN_THE_JOB),
    _Pattern(re.compile(r"Unable to create step for job \S+: .*"), _NOT_IN_THE_JOB),
    _Pattern(
        re.compile(
            r"(?:Invalid generic resource \(gres\) specification"
            r"|Invalid Trackable RESource \(TRES\) specification"
            r"|Only allocated \d+ nodes asked for \d+"
            r"|Requested het-group offset exceeds .*"
            r"|CPU binding outside of job step allocation.*)"
        ),
        _NOT_IN_THE_JOB,
    ),
    _Pattern(
        re.compile(
            r"(?:(?:Unable to allocate resources|Unable to confirm allocation for job \S+"
            r"|.*Unable to contact slurm controller|.*Socket timed out).*)"
        ),
        "the controller did not answer: `scontrol ping`",
    ),
    _Pattern(re.compile(_TASKS + r"(?:Exited with exit code \d+|(?!Terminated)\S.*)")),
    _Pattern(re.compile(r"(?:\*\*\* )?STEP \S+ ON (?P<node>\S+) CANCELLED AT \S+ DUE TO TIME LIMIT.*")),
    _Pattern(re.compile(_TASKS + r"Terminated")),
    _Pattern(re.compile(r"(?:\*\*\* )?STEP \S+ ON (?P<node>\S+) CANCELLED AT .*")),
    _Pattern(re.compile(r"(?:Force Terminated|Job step aborted|Cancelled pending job step).*")),
    _Pattern(
        re.compile(r"Job \S+ step creation (?:temporarily|still) disabled, retrying.*"),
        "the step waits for cores, memory or GPUs that another step of this job has",
        waiting=True,
    ),
)
_STARTED = re.compile(r"Step created for (?:job|StepId=)\s?\S+")


def failure_in(output: str) -> StepFailure | None:
    """The line that tells most about why a step failed, or for what it waits; None where there is none."""
    lines = [
        (match, line[match.end() :].strip()) for line in output.splitlines() if (match := _PREFIX.match(line))
    ]
    started = max((at for at, (_, text) in enumerate(lines) if _STARTED.fullmatch(text)), default=-1)
    for pattern in _PATTERNS:
        for prefix, text in lines[started + 1 :] if pattern.waiting else lines:
            match = pattern.text.fullmatch(text)
            if match:
                node = match.groupdict().get("node") or prefix["node"] or ""
                return StepFailure(node, text, pattern.hint, pattern.waiting)
    return None
