"""RunSpec, the root of `ppo.yaml`: what the user asked for, every default included."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from hpcflow.spec.algorithm import Ppo
from hpcflow.spec.commands import RESERVED, CommandName, CommandRole
from hpcflow.spec.fields import (
    Count,
    FilePath,
    Fraction,
    Index,
    Model,
    Rule,
    Seconds,
    Text,
    refusal,
)
from hpcflow.spec.places import Places
from hpcflow.spec.roles import Placed, Roles, Trained, owner_of, sharing_rules
from hpcflow.spec.slurm import NodeKind, RoleResources, Slurm

MAX_NAME_BYTES = 200

RunName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=120,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="1 to 120 characters, no control characters",
    ),
]


class ModelSource(Model):
    """The policy's Hugging Face folder.

    With `random_weights` the folder needs a config and a tokenizer only.
    """

    path: FilePath
    dtype: Literal["float32", "bfloat16"] = "float32"
    random_weights: bool = False


class Data(Model):
    """Prompts: JSONL or Parquet files, by their ending.

    `prompt_key` holds a text, or a list of chat messages when `chat_template` is on; a text is then
    one user message. Rows are handed to the reward function whole.
    """

    train: FilePath
    heldout: FilePath
    prompt_key: Text = "prompt"
    chat_template: bool = False
    max_prompt_tokens: Count
    shuffle: bool = True
    max_faulty_fraction: Fraction = 0.05

    @model_validator(mode="after")
    def _check(self) -> Data:
        rules = [
            Rule(key, "must end in .jsonl or .parquet")
            for key, path in (("train", self.train), ("heldout", self.heldout))
            if PurePath(path).suffix not in {".jsonl", ".parquet"}
        ]
        if self.train == self.heldout:
            rules.append(Rule("heldout", "the held-out set must not be the training set"))
        if rules:
            raise refusal(rules)
        return self


class Evaluation(Model):
    """Scores on the held-out set: before, during and after training."""

    every_steps: Count = 50
    prompts: Count = 256
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0


class Checkpoint(Model):
    """When to save, and how many complete checkpoints to keep."""

    every_steps: Count = 50
    keep: Count = 3


class Health(Model):
    """Limits that end a run instead of letting it go on blindly."""

    start_timeout_s: Seconds = 600.0
    heartbeat_s: Seconds = 5.0
    max_faulty_rewards: Fraction = 0.1
    max_skipped_steps: Count = 5


class Communication(Model):
    """Back ends are stated, never chosen silently."""

    collectives: Literal["gloo", "nccl"] = "gloo"
    weights: Literal["gloo"] = "gloo"
    weight_bucket_mib: Count = 256
    interface: Text | None = None
    call_timeout_s: Seconds = 600.0
    collective_timeout_s: Seconds = 300.0


class RunSpec(Model):
    """One run, as asked for; not resolved to hosts."""

    name: RunName
    seed: Index = 0
    device: Literal["auto", "cpu"] = "auto"
    steps: Count
    model: ModelSource
    data: Data
    algorithm: Ppo
    roles: Roles
    commands: dict[CommandName, CommandRole] = Field(default={})
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    health: Health = Health()
    communication: Communication = Communication()
    slurm: Slurm = Slurm()

    _places: Places = PrivateAttr(default_factory=Places)

    def written_at(self, places: Places) -> RunSpec:
        """The same spec, which knows where its keys were written."""
        self._places = places
        return self

    def present(self) -> dict[str, Placed]:
        """All that is placed, in this order: the roles of the algorithm, then the commands."""
        return {**self.roles.present(), **self.commands}

    def resources_of(self, name: str) -> RoleResources:
        """Cores and memory of one rank of a role or of a command, and what it says of its nodes."""
        return self.commands[name] if name in self.commands else self.slurm.resources.of(name)

    def resources_key(self, name: str) -> str:
        """The table of the spec that `resources_of` reads."""
        return f"commands.{name}" if name in self.commands else f"slurm.resources.{name}"

    def node_kind(self, name: str) -> NodeKind:
        """What a role or a command asks of its nodes."""
        return self.slurm.node_kind(self.resources_of(name))

    def computes_on_gpus(self, role: Placed) -> bool:
        """Whether the role's engine uses the GPUs that it gets; `device: cpu` leaves them idle."""
        return role.on_gpus and self.device == "auto"

    def place(self, key: str) -> str:
        """`file:line key` of a dotted key, for refusals found after loading."""
        return self._places.describe(tuple(key.split(".")))

    @model_validator(mode="after")
    def _check(self) -> RunSpec:
        rules = [
            *_name_rules(self.name),
            *_reference_rules(self),
            *_collective_rules(self),
            *_command_rules(self),
            *_kind_rules(self),
        ]
        if rules:
            raise refusal(rules)
        return self


def _name_rules(name: str) -> list[Rule]:
    """Whatever can be printed: a job is called so, and the run's folder by a plain form of it."""
    if name != name.strip():
        return [Rule("name", "must not begin or end with a blank")]
    if len(name.encode()) > MAX_NAME_BYTES:
        return [Rule("name", f"longer than {MAX_NAME_BYTES} bytes in UTF-8")]
    return []


def _reference_rules(spec: RunSpec) -> list[Rule]:
    """KL needs something to be measured against."""
    if spec.roles.reference is None and spec.algorithm.kl.coefficient > 0:
        problem = "this role is required, because algorithm.kl.coefficient is above 0"
        hint = "add roles.reference, or set algorithm.kl.coefficient: 0"
        return [Rule("roles.reference", problem, hint)]
    return []


def _kind_rules(spec: RunSpec) -> list[Rule]:
    """Roles on the same GPUs are on the same nodes."""
    rules = []
    present = spec.present()
    for name, role in present.items():
        if role.share_with is None or role.share_with not in present:
            continue
        own, other = spec.node_kind(name), spec.node_kind(role.share_with)
        if own != other:
            problem = (
                f"{name} shares the GPUs of {role.share_with}, but asks for other nodes ({own}; {other})"
            )
            hint = f"give both the same partition, constraint and gpu_type, or {name} no share_with"
            rules.append(Rule(spec.resources_key(name), problem, hint))
    return rules


def _command_rules(spec: RunSpec) -> list[Rule]:
    """Names that nothing else has, GPU sets that exist, and time to get ready within the time for all."""
    present, start_s = spec.present(), spec.health.start_timeout_s
    rules = []
    for name, command in spec.commands.items():
        if name in RESERVED or name.startswith("step_"):
            problem = "this name is taken by a process of every run"
            rules.append(Rule(f"commands.{name}", problem, f"taken: {', '.join(sorted(RESERVED))}, step_..."))
            continue
        rules += [rule._replace(key=f"commands.{rule.key}") for rule in sharing_rules(name, present)]
        if command.essential and command.ready_within_s(start_s) > start_s:
            problem = f"longer than the {start_s:g} s in which everything must be ready"
            hint = "raise health.start_timeout_s, or set essential: false"
            rules.append(Rule(f"commands.{name}.ready_timeout_s", problem, hint))
    return rules or _step_rules(spec)


def _step_rules(spec: RunSpec) -> list[Rule]:
    """Roles that share GPUs are one job step, which is called after all of them."""
    present = spec.present()
    groups: dict[str, list[str]] = {}
    for name in present:
        groups.setdefault(owner_of(name, present), []).append(name)
    called: dict[str, str] = {}
    rules = []
    for names in groups.values():
        step, log = "+".join(names), "_".join(names)
        other = called.setdefault(log, step)
        if other != step:
            problem = f"steps {other} and {step} would both be called {log}"
            at = next(name for name in [*names, *other.split("+")] if name in spec.commands)
            rules.append(Rule(f"commands.{at}", problem, "give it another name"))
    return rules


def _collective_rules(spec: RunSpec) -> list[Rule]:
    """NCCL works between GPUs only, and gloo cannot gather shards that lie on GPUs."""
    trained: dict[str, Trained] = {"actor": spec.roles.actor, "critic": spec.roles.critic}
    key, stated = "communication.collectives", spec.communication.collectives
    for name, role in trained.items():
        if stated == "nccl" and not spec.computes_on_gpus(role):
            hint = f"set roles.{name}.gpus_per_node, or communication.collectives: gloo"
            return [Rule(key, f"nccl needs GPUs, and {name} runs on CPUs", hint)]
        if stated == "gloo" and spec.computes_on_gpus(role) and role.nodes * role.ranks_per_node > 1:
            problem = f"gloo cannot gather what the GPU ranks of {name} hold"
            return [Rule(key, problem, "set communication.collectives: nccl")]
    return []
