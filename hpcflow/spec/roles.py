"""One spec per role: where it runs, and how it computes.

GPU counts are per node. A role either has a GPU set of its own or names, with `share_with`, the
role whose set it uses too (from its first GPU on); `gpus_per_node: 0` is a role on CPUs. Every rank
takes one GPU, a rollout rank `tensor_parallel` of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import Field, model_validator

from hpcflow.spec.fields import (
    Count,
    Decay,
    FilePath,
    Fraction,
    FunctionLocation,
    Gibibytes,
    Gpus,
    LearningRate,
    Model,
    Ranks,
    Rule,
    Seconds,
    WholeNumber,
    refusal,
)

RoleName = Literal["actor", "critic", "reference", "reward", "rollout"]
ROLE_NAMES: tuple[RoleName, ...] = ("actor", "critic", "reference", "reward", "rollout")


class Placed(Protocol):
    """What takes nodes and GPUs: a role of the algorithm, or a command."""

    @property
    def nodes(self) -> int:
        """How many nodes."""

    @property
    def ranks_per_node(self) -> int:
        """Processes on each of them."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each of them; 0: CPUs."""

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of one rank where it runs on GPUs."""

    @property
    def share_with(self) -> str | None:
        """Whose GPUs it uses; None: GPUs of its own."""

    @property
    def on_gpus(self) -> bool:
        """Whether it takes GPUs."""


class Placement(Model):
    """How many nodes, ranks and GPUs a role takes."""

    nodes: Ranks = 1
    ranks_per_node: Ranks = 1
    gpus_per_node: Gpus = 0
    share_with: RoleName | None = None

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of one rank where the role runs on GPUs."""
        return 1

    @property
    def on_gpus(self) -> bool:
        """Whether the role runs on GPUs."""
        return self.gpus_per_node > 0


class Optimizer(Model):
    """AdamW and its schedule; the schedule counts optimizer steps."""

    learning_rate: LearningRate
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Annotated[float, Field(gt=0, le=1e-2)] = 1e-8
    weight_decay: Fraction = 0.0
    max_grad_norm: Annotated[float, Field(gt=0, le=1000)] = 0.5
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"


class Trained(Placement):
    """A role that DeepSpeed trains."""

    zero_stage: Annotated[Literal[1, 2, 3], WholeNumber] = 2
    microbatch_per_gpu: Count
    gradient_checkpointing: bool = False
    optimizer: Optimizer


class Actor(Trained):
    """The policy that is trained."""


class Critic(Trained):
    """The value model; `model` defaults to the actor's weights with a new value head."""

    model: FilePath | None = None


class Reference(Placement):
    """The frozen policy that KL is measured against: the weights of `model.path`."""

    microbatch_per_gpu: Count


class Rollout(Placement):
    """vLLM engines, one per rank; each takes `tensor_parallel` GPUs of one node."""

    tensor_parallel: Ranks = 1
    max_response_tokens: Count
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    kv_cache_gib: Gibibytes = 1.0
    enforce_eager: bool = True
    max_sequences: Count = 256

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel


class FunctionReward(Placement):
    """A Python function `score(prompt, response, row) -> float`, run in processes of its own."""

    kind: Literal["function"]
    function: FunctionLocation
    timeout_s: Seconds = 10.0
    processes: Ranks = 1


class ModelReward(Placement):
    """A transformers sequence classifier with one output."""

    kind: Literal["model"]
    model: FilePath
    microbatch_per_gpu: Count


Reward = Annotated[FunctionReward | ModelReward, Field(discriminator="kind")]


class Roles(Model):
    """All roles of a PPO run; `reference` may be left out when the KL coefficient is 0."""

    actor: Actor
    critic: Critic
    reference: Reference | None = None
    reward: Reward
    rollout: Rollout

    def present(self) -> dict[str, Placement]:
        """The roles that this run has, in the order in which they are placed."""
        every: dict[str, Placement | None] = {
            "actor": self.actor,
            "critic": self.critic,
            "reference": self.reference,
            "reward": self.reward,
            "rollout": self.rollout,
        }
        return {name: role for name, role in every.items() if role is not None}

    @model_validator(mode="after")
    def _check(self) -> Roles:
        present = self.present()
        rules = [
            rule
            for name, role in present.items()
            for rule in (*_gpu_rules(name, role), *sharing_rules(name, present))
        ]
        if rules:
            raise refusal(rules)
        return self


def _gpu_rules(name: str, role: Placement) -> list[Rule]:
    """GPUs of a node must be those that its ranks take."""
    taken = role.ranks_per_node * role.gpus_per_rank
    if role.gpus_per_node in {0, taken}:
        return []
    ranks = f"{role.ranks_per_node} rank{'s' * (role.ranks_per_node > 1)} a node"
    sizes = f"{ranks} x {role.gpus_per_rank} GPU{'s' * (role.gpus_per_rank > 1)} a rank"
    problem = f"must be {taken} ({sizes}), or 0 for CPUs"
    hint = f"set roles.{name}.gpus_per_node: {taken}, or change ranks_per_node"
    if isinstance(role, Rollout):
        hint += " or tensor_parallel"
    return [Rule(f"{name}.gpus_per_node", problem, hint)]


def table_of(name: str) -> str:
    """The key of the spec that holds a role or a command."""
    return f"roles.{name}" if name in ROLE_NAMES else f"commands.{name}"


def gpus_key(name: str) -> str:
    """The key by which the spec says how many GPUs a role or a command takes."""
    return f"{table_of(name)}.gpus_per_node" if name in ROLE_NAMES else f"{table_of(name)}.gpus_per_rank"


def sharing_rules(name: str, present: Mapping[str, Placed]) -> list[Rule]:
    """A shared GPU set must exist, be large enough, and lead to an owner; keys are seen from the table."""
    role, key = present[name], f"{name}.share_with"
    if role.share_with is None:
        return []
    if role.share_with not in present:
        others = ", ".join(other for other in present if other != name)
        return [Rule(key, f"this run has no role {role.share_with}", f"valid: {others}")]
    seen: list[str] = [name]
    following: str | None = role.share_with
    while following is not None and following in present:
        if following in seen:
            chain = " -> ".join([*seen, following])
            return [Rule(key, f"sharing must end at a role with GPUs of its own, but: {chain}")]
        seen.append(following)
        following = present[following].share_with
    owner = present[role.share_with]
    if not role.on_gpus or not owner.on_gpus:
        without = name if not role.on_gpus else role.share_with
        hint = f"set {gpus_key(without)}, or leave share_with out"
        return [Rule(key, f"{without} takes no GPUs, so there is no set to share", hint)]
    rules = []
    if role.gpus_per_node > owner.gpus_per_node:
        problem = f"more than the {owner.gpus_per_node} that {role.share_with} has to share"
        rules.append(Rule(gpus_key(name).partition(".")[2], problem))
    if role.nodes > owner.nodes:
        problem = f"more than the {owner.nodes} that {role.share_with} has to share"
        rules.append(Rule(f"{name}.nodes", problem))
    return rules


def owner_of(name: str, present: Mapping[str, Placed]) -> str:
    """The role at the end of a chain of `share_with`, which leads to one."""
    following = present[name].share_with
    while following is not None:
        name, following = following, present[following].share_with
    return name
