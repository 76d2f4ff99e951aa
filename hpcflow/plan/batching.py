"""All batch arithmetic of a run, and the refusals where it does not divide.

    prompts_per_step x samples_per_prompt            = samples_per_step
    samples_per_step / minibatch_samples             = minibatches_per_epoch
    minibatch_samples / ranks of a trained role      = rank_minibatch_samples
    rank_minibatch_samples / microbatch_per_gpu      = accumulation
    minibatches_per_epoch x epochs                   = optimizer_steps_per_step

Counts are per training step and global over all ranks unless a name says otherwise. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcflow.errors import SpecError, SpecErrors
from hpcflow.plan.plan import Batching, TrainBatching
from hpcflow.spec.roles import Placement, RoleName, Trained
from hpcflow.spec.run import RunSpec


def build_batching(spec: RunSpec) -> Batching:
    """Batch sizes of a run.

    Raises:
        SpecErrors: what does not divide, with the keys and the nearest numbers that do.
    """
    faults = [*_sample_faults(spec), *_train_faults(spec), *_spread_faults(spec)]
    faults = faults or list(_schedule_faults(spec))
    if faults:
        raise SpecErrors(faults)
    algorithm, roles = spec.algorithm, spec.roles
    samples = samples_per_step(spec)
    prompt, response = spec.data.max_prompt_tokens, roles.rollout.max_response_tokens
    return Batching(
        prompts_per_step=algorithm.prompts_per_step,
        samples_per_prompt=algorithm.samples_per_prompt,
        samples_per_step=samples,
        epochs=algorithm.epochs,
        minibatches_per_epoch=samples // algorithm.minibatch_samples,
        max_prompt_tokens=prompt,
        max_response_tokens=response,
        max_sequence_tokens=prompt + response,
        actor=_train_batching(spec, roles.actor),
        critic=_train_batching(spec, roles.critic),
    )


def samples_per_step(spec: RunSpec) -> int:
    """Samples of one training step, over all ranks."""
    return spec.algorithm.prompts_per_step * spec.algorithm.samples_per_prompt


def world_size(role: Placement) -> int:
    """Ranks of a role over all its nodes."""
    return role.nodes * role.ranks_per_node


def _train_batching(spec: RunSpec, role: Trained) -> TrainBatching:
    minibatch = spec.algorithm.minibatch_samples
    rank_minibatch = minibatch // world_size(role)
    steps_per_step = spec.algorithm.epochs * (samples_per_step(spec) // minibatch)
    return TrainBatching(
        minibatch_samples=minibatch,
        rank_minibatch_samples=rank_minibatch,
        microbatch_per_gpu=role.microbatch_per_gpu,
        accumulation=rank_minibatch // role.microbatch_per_gpu,
        optimizer_steps_per_step=steps_per_step,
        optimizer_steps_total=steps_per_step * spec.steps,
    )


def _trained(spec: RunSpec) -> dict[RoleName, Trained]:
    return {"actor": spec.roles.actor, "critic": spec.roles.critic}


def _unit(spec: RunSpec) -> int:
    """A minibatch must be a multiple of this: whole micro-batches on every rank that trains."""
    sizes = [world_size(role) * role.microbatch_per_gpu for role in _trained(spec).values()]
    return math.lcm(*sizes)


def _sample_faults(spec: RunSpec) -> Iterator[SpecError]:
    """Minibatches must divide the samples of a step."""
    samples, minibatch = samples_per_step(spec), spec.algorithm.minibatch_samples
    if samples % minibatch == 0:
        return
    unit = _unit(spec)
    valid = [size for size in _divisors(samples) if size % unit == 0] or _divisors(samples)
    prompts, each = spec.algorithm.prompts_per_step, spec.algorithm.samples_per_prompt
    product = f"prompts_per_step {prompts} x samples_per_prompt {each}"
    problem = f"must divide the {samples} samples of a step ({product})"
    yield SpecError(
        spec.place("algorithm.minibatch_samples"),
        problem,
        value=str(minibatch),
        hint=f"nearest valid: {_around(minibatch, valid)}",
    )


def _train_faults(spec: RunSpec) -> Iterator[SpecError]:
    """A minibatch must make whole micro-batches on every rank."""
    minibatch, samples = spec.algorithm.minibatch_samples, samples_per_step(spec)
    for name, role in _trained(spec).items():
        world, key = world_size(role), f"roles.{name}.microbatch_per_gpu"
        if minibatch % world:
            unit = _unit(spec)
            divisors = [size for size in _divisors(samples) if size % unit == 0]
            valid = divisors or [size * unit for size in range(1, minibatch // unit + 2)]
            yield SpecError(
                spec.place("algorithm.minibatch_samples"),
                f"must be a multiple of the {world} ranks of {name}",
                value=str(minibatch),
                hint=f"nearest valid: {_around(minibatch, valid)}, or change roles.{name}",
            )
        elif minibatch // world % role.microbatch_per_gpu:
            rank = minibatch // world
            yield SpecError(
                spec.place(key),
                f"must divide the {rank} samples that each rank of {name} has of a minibatch "
                f"(algorithm.minibatch_samples {minibatch} / {world} rank{'s' * (world > 1)})",
                value=str(role.microbatch_per_gpu),
                hint=f"nearest valid: {_around(role.microbatch_per_gpu, _divisors(rank))}",
            )


def _spread_faults(spec: RunSpec) -> Iterator[SpecError]:
    """Every rank of a role without minibatches takes the same share of a step."""
    prompts, samples = spec.algorithm.prompts_per_step, samples_per_step(spec)
    shared: dict[RoleName, tuple[int, str]] = {
        "rollout": (prompts, "prompts"),
        "reference": (samples, "samples"),
        "reward": (samples, "samples"),
    }
    for name, role in spec.roles.present().items():
        if name not in shared:
            continue
        count, what = shared[name]
        world = world_size(role)
        if count % world:
            unit = world if what == "prompts" else world // math.gcd(world, spec.algorithm.samples_per_prompt)
            valid = [size * unit for size in range(1, prompts // unit + 2)]
            yield SpecError(
                spec.place("algorithm.prompts_per_step"),
                f"the {count} {what} of a step must spread evenly over the {world} ranks of {name}",
                value=str(prompts),
                hint=f"nearest valid: {_around(prompts, valid)}, or change roles.{name}",
            )


def _schedule_faults(spec: RunSpec) -> Iterator[SpecError]:
    """A warm-up must end before the run does."""
    for name, role in _trained(spec).items():
        total = _train_batching(spec, role).optimizer_steps_total
        if role.optimizer.warmup_steps >= total:
            yield SpecError(
                spec.place(f"roles.{name}.optimizer.warmup_steps"),
                f"must be below the {total} optimizer steps of the run",
                value=str(role.optimizer.warmup_steps),
            )


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _around(number: int, valid: list[int]) -> str:
    """The valid numbers next to `number`, such as `32 or 64`."""
    below = [size for size in valid if size < number][-1:]
    above = [size for size in valid if size > number][:1]
    return " or ".join(str(size) for size in (*below, *above))
