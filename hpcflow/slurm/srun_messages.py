"""What `srun` writes on its standard error about a step that failed: which node, and why.

Slurm's wording changes between versions, so what is not recognized is passed on as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StepFailure:
    """`message` is Slurm's own line, without its prefix; `node` is empty where none is named."""

    node: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class _Pattern:
    text: re.Pattern[str]
    hint: str = ""


# More telling ones first.
_PATTERNS = (
    _Pattern(
        re.compile(r"Task launch for StepId=\S+ failed on node (?P<node>\S+): .*"),
        "is the node up (`sinfo -R`)? are the interpreter and the run folder on a shared file system?",
    ),
    _Pattern(re.compile(r"Node failure on (?P<node>\S+)")),
    _Pattern(
        re.compile(r"(?P<node>\S+): tasks? \S+: Out Of Memory"), "give the roles of this step more memory"
    ),
    _Pattern(re.compile(r".*(?:_fork_exec|execve\(\)|couldn't chdir).*")),
    _Pattern(
        re.compile(r"Unable to create step for job \S+: .*"),
        "what the step asks for is not in the job: see the srun line in the supervisor's log",
    ),
    _Pattern(re.compile(r"(?P<node>\S+): tasks? \S+: (?:Killed|Terminated|Exited with exit code \d+|.*)")),
    _Pattern(re.compile(r"Job step aborted.*")),
    _Pattern(re.compile(r"Job \S+ step creation temporarily disabled, retrying.*")),
)
_PREFIX = re.compile(r"^(?:srun|slurmstepd(?:-\S+)?|slurmd(?:-\S+)?): (?:error|fatal)?:? ?")


def failure_in(output: str) -> StepFailure | None:
    """The line that tells most about why a step failed; None where there is none."""
    lines = [_PREFIX.sub("", line) for line in output.splitlines() if _PREFIX.match(line)]
    for pattern in _PATTERNS:
        for line in lines:
            match = pattern.text.fullmatch(line.strip())
            if match:
                node = match.groupdict().get("node") or ""
                return StepFailure(node, line.strip(), pattern.hint)
    return None
