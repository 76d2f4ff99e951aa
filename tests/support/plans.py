"""Plans made by hand, for what only shows or checks them."""

from __future__ import annotations

from hpcflow.plan.plan import (
    Batching,
    Component,
    JobStep,
    Plan,
    RankPlan,
    RolePlan,
    Shape,
    TrainBatching,
    WeightRoute,
)
from hpcflow.spec.roles import ROLE_NAMES, RoleName


def _trained(microbatch: int) -> TrainBatching:
    return TrainBatching(
        minibatch_samples=32,
        rank_minibatch_samples=32,
        microbatch_per_gpu=microbatch,
        accumulation=32 // microbatch,
        optimizer_steps_per_step=4,
        optimizer_steps_total=800,
    )


def _component(gpus: int) -> Component:
    return Component(
        roles=ROLE_NAMES,
        nodes=(0,),
        partition=None,
        constraint=None,
        gpu_type=None,
        gpus_per_node=gpus,
        cpus_per_node=6,
        memory_mib_per_node=24 * 1024,
    )


def _steps(on_gpu: bool) -> tuple[JobStep, ...]:
    """On GPUs the actor's step starts its sharers, too."""
    groups: list[tuple[RoleName, ...]] = [(role,) for role in ROLE_NAMES]
    if on_gpu:
        groups = [("actor", "reference", "reward"), ("critic",), ("rollout",)]
    return tuple(
        JobStep(
            name="+".join(group),
            component=0,
            roles=group,
            nodes=(0,),
            gpus_per_node=int(on_gpu),
            cpus_per_node=len(group),
            memory_mib_per_node=4 * 1024 * len(group),
        )
        for group in groups
    )


def a_plan(*, on_gpu: bool = False, name: str = "sums") -> Plan:
    """Five roles of one rank on one node; on GPUs the reference and reward share the actor's."""
    gpus: dict[RoleName, int] = {"actor": 0, "critic": 1, "reference": 0, "reward": 0, "rollout": 2}
    roles = tuple(
        RolePlan(
            role=role,
            device="cuda" if on_gpu else "cpu",
            nodes=(0,),
            gpus_by_node=((gpus[role],) if on_gpu else (),),
            shares_with="actor" if on_gpu and role in ("reference", "reward") else None,
            ranks=(RankPlan(rank=0, node=0, local_rank=0, gpus=(gpus[role],) if on_gpu else ()),),
            cpus_per_rank=1,
            memory_gib_per_rank=4.0,
        )
        for role in ROLE_NAMES
    )
    batching = Batching(
        prompts_per_step=16,
        samples_per_prompt=4,
        samples_per_step=64,
        epochs=2,
        minibatches_per_epoch=2,
        max_prompt_tokens=24,
        max_response_tokens=8,
        max_sequence_tokens=32,
        actor=_trained(16),
        critic=_trained(32),
    )
    return Plan(
        name=name,
        steps=200,
        nodes=1,
        gpus_per_node=3 if on_gpu else 0,
        roles=roles,
        shape=Shape("steps", "all roles want the same kind of node", "starts like any job"),
        components=(_component(3 if on_gpu else 0),),
        job_steps=_steps(on_gpu),
        batching=batching,
        weights=WeightRoute(backend="gloo", sender="actor", receiver="rollout", group_size=2),
    )
