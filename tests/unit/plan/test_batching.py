from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.errors import SpecErrors
from hpcflow.plan.batching import build_batching
from tests.support.specs import tiny_spec


def faults(folder: Path, *overrides: str) -> list[str]:
    spec = tiny_spec(folder, *overrides)
    with pytest.raises(SpecErrors) as caught:
        build_batching(spec)
    return [str(fault).replace(f"{folder}/", "") for fault in caught.value.faults]


def test_batch_sizes_of_a_hand_computed_case(tmp_path: Path) -> None:
    batching = build_batching(
        tiny_spec(
            tmp_path,
            "algorithm={prompts_per_step: 24, samples_per_prompt: 4, minibatch_samples: 32, epochs: 2}",
            "roles.actor.ranks_per_node=2",
            "roles.actor.nodes=2",
        )
    )
    assert batching.samples_per_step == 96
    assert batching.minibatches_per_epoch == 3
    assert batching.max_sequence_tokens == 16
    actor, critic = batching.actor, batching.critic
    assert (actor.rank_minibatch_samples, actor.accumulation) == (8, 4)
    assert (critic.rank_minibatch_samples, critic.accumulation) == (32, 8)
    assert actor.optimizer_steps_per_step == critic.optimizer_steps_per_step == 6
    assert actor.optimizer_steps_total == 60


def test_minibatches_must_divide_a_step(tmp_path: Path) -> None:
    assert faults(
        tmp_path, "algorithm={prompts_per_step: 50, samples_per_prompt: 2, minibatch_samples: 40}"
    ) == [
        "--set algorithm.minibatch_samples: must divide the 100 samples of a step "
        "(prompts_per_step 50 x samples_per_prompt 2) (got 40)\n  nearest valid: 20 or 100"
    ]


def test_microbatches_must_divide_what_a_rank_has(tmp_path: Path) -> None:
    assert faults(tmp_path, "roles.actor.microbatch_per_gpu=3") == [
        "--set roles.actor.microbatch_per_gpu: must divide the 4 samples that each rank of actor has "
        "of a minibatch (algorithm.minibatch_samples 4 / 1 rank) (got 3)\n  nearest valid: 2 or 4"
    ]


def test_minibatches_must_spread_over_the_ranks(tmp_path: Path) -> None:
    messages = faults(tmp_path, "roles.actor.ranks_per_node=3", "algorithm.prompts_per_step=24")
    assert messages == [
        "ppo.yaml:11 algorithm.minibatch_samples: must be a multiple of the 3 ranks of actor (got 4)\n"
        "  nearest valid: 12, or change roles.actor"
    ]


def test_prompts_must_spread_over_the_engines(tmp_path: Path) -> None:
    assert faults(tmp_path, "roles.rollout.ranks_per_node=3") == [
        "ppo.yaml:10 algorithm.prompts_per_step: the 8 prompts of a step must spread evenly over the "
        "3 ranks of rollout (got 8)\n  nearest valid: 6 or 9, or change roles.rollout"
    ]


def test_a_warm_up_must_end_before_the_run(tmp_path: Path) -> None:
    assert faults(tmp_path, "roles.critic.optimizer.warmup_steps=20") == [
        "--set roles.critic.optimizer.warmup_steps: must be below the 20 optimizer steps of the run (got 20)"
    ]
    build_batching(tiny_spec(tmp_path, "roles.critic.optimizer.warmup_steps=19"))


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.integers(1, 200),
    samples=st.integers(1, 8),
    minibatch=st.integers(1, 400),
    ranks=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    micro=st.tuples(st.integers(1, 16), st.integers(1, 16)),
)
def test_no_sample_is_lost_or_used_twice(
    prompts: int, samples: int, minibatch: int, ranks: tuple[int, int], micro: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spec = tiny_spec(
            Path(folder),
            f"algorithm={{prompts_per_step: {prompts}, samples_per_prompt: {samples}, "
            f"minibatch_samples: {minibatch}}}",
            f"roles.actor.ranks_per_node={ranks[0]}",
            f"roles.critic.ranks_per_node={ranks[1]}",
            f"roles.actor.microbatch_per_gpu={micro[0]}",
            f"roles.critic.microbatch_per_gpu={micro[1]}",
        )
    divides = prompts * samples % minibatch == 0 and all(
        minibatch % (world * rows) == 0 for world, rows in zip(ranks, micro, strict=True)
    )
    if not divides:
        with pytest.raises(SpecErrors):
            build_batching(spec)
        return
    batching = build_batching(spec)
    assert batching.minibatches_per_epoch * minibatch == batching.samples_per_step
    for trained, world in zip((batching.actor, batching.critic), ranks, strict=True):
        rows = trained.accumulation * trained.microbatch_per_gpu
        assert rows * world == minibatch
