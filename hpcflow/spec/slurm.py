"""The `slurm` table: what sbatch is asked for, and the environment of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from hpcflow.spec.fields import Count, FilePath, Gibibytes, Gpus, Model, Rule, Text, refusal

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NcclName = Annotated[str, Field(pattern=r"^NCCL_[A-Z0-9_]+$")]
OptionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
OptionValue = Text | Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] | bool

# sbatch options that a key of the spec stands for.
_HAS_A_KEY = {
    "partition": "slurm.partition",
    "account": "slurm.account",
    "qos": "slurm.qos",
    "time": "slurm.time_minutes",
    "constraint": "slurm.constraint",
    "signal": "slurm.signal_lead_s",
    "job-name": "name",
    "mem": "slurm.resources",
    "cpus-per-task": "slurm.resources",
}
# sbatch options that follow from the plan, or that would break supervision.
_OURS = frozenset(
    {
        *(
            "array",
            "batch",
            "chdir",
            "error",
            "export",
            "export-file",
            "input",
            "output",
            "open-mode",
        ),
        *("gpus", "gpus-per-node", "gpus-per-task", "gres", "mem-per-cpu", "mem-per-gpu"),
        *("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "requeue", "no-requeue"),
        *("parsable", "test-only", "uid", "gid", "wait", "wrap"),
    }
)
# Variables that the processes of a run get from the plan and from their rendezvous.
_OUR_VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)


class NodeKind(NamedTuple):
    """Which nodes a role is to get; None leaves it to Slurm."""

    partition: str | None
    constraint: str | None
    gpu_type: str | None

    def __str__(self) -> str:
        named = [f"{key} {value}" for key, value in self._asdict().items() if value is not None]
        return ", ".join(named) or "any node"


def variable_rules(table: str, variables: Mapping[str, str]) -> list[Rule]:
    """Broken rules of environment variables that a spec sets in `table`."""
    rules = []
    for variable, value in variables.items():
        if variable in _OUR_VARIABLES or variable.startswith(("HPCFLOW_", "SLURM_")):
            rules.append(Rule(f"{table}.{variable}", "this variable is set by hpcflow or by Slurm"))
        if "\0" in value:
            rules.append(Rule(f"{table}.{variable}", "must not hold a NUL character"))
    return rules


class RankResources(Model):
    """CPU cores and memory of one rank."""

    cpus_per_rank: Count = 1
    memory_gib_per_rank: Gibibytes = 4.0


class RoleResources(RankResources):
    """Of one rank of a role; the kind of its nodes where it is not the one of the `slurm` table."""

    partition: Text | None = None
    constraint: Text | None = None
    gpu_type: Text | None = None


class Resources(Model):
    """Cores and memory of one rank, for every role (of roles that a run has not, unused)."""

    actor: RoleResources = RoleResources()
    critic: RoleResources = RoleResources()
    reference: RoleResources = RoleResources()
    reward: RoleResources = RoleResources()
    rollout: RoleResources = RoleResources()

    def of(self, role: str) -> RoleResources:
        """The resources of one role of the algorithm; commands state their own."""
        every: dict[str, RoleResources] = {
            "actor": self.actor,
            "critic": self.critic,
            "reference": self.reference,
            "reward": self.reward,
            "rollout": self.rollout,
        }
        return every[role]


class Slurm(Model):
    """Options of the Slurm job; a local run uses variables, signal lead, cores, GPUs and topology only.

    `gpus_per_node` is what a node has, not what a run takes: roles are placed within it.
    """

    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    time_minutes: Count = 60
    constraint: Text | None = None
    gpus_per_node: Gpus = 0
    gpu_type: Text | None = None
    topology: FilePath | None = None
    shape: Literal["auto", "steps", "hetjob"] = "auto"
    signal_lead_s: Annotated[int, Field(ge=10, le=65535)] = 120
    resources: Resources = Resources()
    driver: RankResources = RankResources()
    options: dict[OptionName, OptionValue] = Field(default={})
    environment: dict[EnvironmentName, str] = Field(default={})
    nccl: dict[NcclName, str] = Field(default={})
    modules: list[Text] = Field(default=[])
    container_prefix: list[Text] = Field(default=[])

    def node_kind(self, own: RoleResources) -> NodeKind:
        """What a role with these resources asks of its nodes."""
        return NodeKind(
            own.partition or self.partition, own.constraint or self.constraint, own.gpu_type or self.gpu_type
        )

    @model_validator(mode="after")
    def _check(self) -> Slurm:
        rules = []
        for name in self.options:
            if name in _HAS_A_KEY:
                rules.append(Rule(f"options.{name}", f"give this as {_HAS_A_KEY[name]}"))
            if name in _OURS:
                rules.append(Rule(f"options.{name}", "this option follows from the plan"))
        for table, variables in (("environment", self.environment), ("nccl", self.nccl)):
            rules += variable_rules(table, variables)
        if rules:
            raise refusal(rules)
        return self
