"""A command as a role: any program that is placed, started, watched and ended like the roles of the run.

Words of a command may hold placeholders such as {port}, which each rank fills in for itself when it starts; a
brace that is meant is doubled, as in `str.format`. What a rank is told stands in its environment, too.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from hpcflow.spec.fields import FilePath, Gpus, Model, Ranks, Rule, Seconds, refusal
from hpcflow.spec.roles import ROLE_NAMES
from hpcflow.spec.slurm import EnvironmentName, RoleResources, variable_rules

# Names that other processes of a run, and their logs, have.
RESERVED = frozenset({*ROLE_NAMES, "driver", "supervisor", "sweeper", "step", "batch"})

PLACEHOLDERS = {
    "address": "address of this rank's node, as the other nodes reach it",
    "port": "a port that was free there when the rank started",
    "rank": "number of the rank in the command",
    "world_size": "number of ranks of the command",
    "local_rank": "number of the rank on its node",
    "run_folder": "the run folder",
    "python": "the Python that hpcflow runs with (outside of a container)",
    "first_address": "address of rank 0",
    "first_port": "port of rank 0",
}

# User code without a time of its own to get ready has this share of the time for all ranks, so that its
# fault comes first.
START_SHARE = 0.8


def fill(template: str, values: Mapping[str, object]) -> str:
    """Put values into a word that the spec has checked; `values` has a value for every placeholder."""
    return template.format_map(values)


def _check_word(word: str) -> str:
    """A word for `exec` whose braces are placeholders that exist."""
    if "\0" in word:
        raise refusal([Rule("", "must not hold a NUL character")])
    escape = "a brace that is meant is doubled: {{ and }}"
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        raise refusal([Rule("", f"a brace that is no placeholder's: {error}", escape)]) from None
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in PLACEHOLDERS:
            close = difflib.get_close_matches(name, PLACEHOLDERS, n=1)
            valid = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            hint = f"did you mean {{{close[0]}}}?" if close else f"valid: {valid}; {escape}"
            raise refusal([Rule("", f"unknown placeholder {{{name}}}", hint)])
        if form or conversion:
            raise refusal([Rule("", f"a placeholder is a name alone: {{{name}}}", escape)])
    return word


def _check_command(words: list[str]) -> list[str]:
    if not words or not words[0]:
        raise refusal([Rule("", "must begin with the name of a program", "as in  [python, -m, http.server]")])
    return words


CommandName = Annotated[
    str,
    Field(
        max_length=40,
        pattern=r"^[a-z][a-z0-9_]*$",
        description="a name: up to 40 lower-case letters, digits and _, a letter first",
    ),
]
Word = Annotated[str, Field(max_length=65536), AfterValidator(_check_word)]
UrlPath = Annotated[
    str, Field(max_length=2000, pattern=r"^/[!-~]*$", description="the path of a URL, such as /health")
]


class Probe(Model):
    """How a rank of a command shows that it is ready; exactly one of these."""

    port: bool = False
    http: UrlPath | None = None
    file: Word | None = None

    @model_validator(mode="after")
    def _check(self) -> Probe:
        if [self.port, self.http is not None, self.file is not None].count(True) != 1:
            hint = "write  port: true,  http: /PATH  or  file: PATH,  or leave ready out"
            raise refusal([Rule("", "must hold exactly one of port, http and file", hint)])
        return self


class CommandRole(RoleResources):
    """Any program as a role; it takes `gpus_per_rank` GPUs for each rank, all of one node.

    Without `ready` a rank is ready as soon as it runs. `essential` is whether the run ends with it.
    """

    command: Annotated[list[Word], AfterValidator(_check_command)]
    folder: FilePath = Field(default=".", validate_default=True)
    nodes: Ranks = 1
    ranks_per_node: Ranks = 1
    gpus_per_rank: Gpus = 0
    share_with: CommandName | None = None
    ready: Probe | None = None
    ready_timeout_s: Seconds | None = None
    essential: bool = True
    environment: dict[EnvironmentName, str] = Field(default={})

    @property
    def gpus_per_node(self) -> int:
        """GPUs that all ranks of a node take."""
        return self.ranks_per_node * self.gpus_per_rank

    @property
    def on_gpus(self) -> bool:
        """Whether the command gets GPUs."""
        return self.gpus_per_rank > 0

    def ready_within_s(self, start_timeout_s: float) -> float:
        """Seconds that a rank has to get ready, where all ranks of the run have `start_timeout_s`."""
        return START_SHARE * start_timeout_s if self.ready_timeout_s is None else self.ready_timeout_s

    @model_validator(mode="after")
    def _check(self) -> CommandRole:
        rules = variable_rules("environment", self.environment)
        if rules:
            raise refusal(rules)
        return self
