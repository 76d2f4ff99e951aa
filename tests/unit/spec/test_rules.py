"""Rules that span several keys of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.errors import SpecErrors
from tests.support.specs import tiny_spec


def faults(folder: Path, *overrides: str) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        tiny_spec(folder, *overrides)
    return [str(fault).replace(f"{folder}/", "") for fault in caught.value.faults]


def test_kl_needs_a_reference(tmp_path: Path) -> None:
    assert faults(tmp_path, "roles.reference=null") == [
        "--set roles.reference: this role is required, because algorithm.kl.coefficient is above 0 "
        "(got null)\n  add roles.reference, or set algorithm.kl.coefficient: 0"
    ]
    without = tiny_spec(tmp_path, "roles.reference=null", "algorithm.kl.coefficient=0")
    assert "reference" not in without.roles.present()


def test_an_adaptive_kl_cannot_start_at_zero(tmp_path: Path) -> None:
    overrides = ["algorithm.kl.coefficient=0.0", "algorithm.kl.target=0.1"]
    assert faults(tmp_path, *overrides) == [
        "--set algorithm.kl.target: an adaptive coefficient that starts at 0 stays at 0 (got 0.1)\n"
        "  give kl.coefficient a value above 0, or leave kl.target out"
    ]


def test_gpus_of_a_node_are_those_of_its_ranks(tmp_path: Path) -> None:
    overrides = [
        "roles.rollout.gpus_per_node=3",
        "roles.rollout.tensor_parallel=2",
        "roles.rollout.ranks_per_node=2",
        "roles.reward.gpus_per_node=2",
    ]
    assert faults(tmp_path, *overrides) == [
        "--set roles.rollout.gpus_per_node: must be 4 (2 ranks a node x 2 GPUs a rank), "
        "or 0 for CPUs (got 3)\n  set roles.rollout.gpus_per_node: 4, or change ranks_per_node or "
        "tensor_parallel",
        "--set roles.reward.gpus_per_node: must be 1 (1 rank a node x 1 GPU a rank), or 0 for CPUs "
        "(got 2)\n  set roles.reward.gpus_per_node: 1, or change ranks_per_node",
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["roles.critic.share_with=critic"],
            "--set roles.critic.share_with: sharing must end at a role with GPUs of its own, but: "
            "critic -> critic (got 'critic')",
        ),
        (
            ["roles.critic.share_with=actor", "roles.critic.gpus_per_node=1"],
            "--set roles.critic.share_with: actor takes no GPUs, so there is no set to share "
            "(got 'actor')\n  set roles.actor.gpus_per_node, or leave share_with out",
        ),
        (
            ["roles.critic.share_with=actor", "roles.actor.gpus_per_node=1"],
            "--set roles.critic.share_with: critic takes no GPUs, so there is no set to share "
            "(got 'actor')\n  set roles.critic.gpus_per_node, or leave share_with out",
        ),
        (
            ["roles.critic={share_with: nobody}"],
            "--set roles.critic.share_with: must be one of actor, critic, reference, reward, "
            "rollout or null (got 'nobody')",
        ),
        (
            [
                "roles.reference=null",
                "algorithm.kl.coefficient=0",
                "roles.rollout.share_with=reference",
            ],
            "--set roles.rollout.share_with: this run has no role reference (got 'reference')\n"
            "  valid: actor, critic, reward",
        ),
        (
            [
                "roles.actor.gpus_per_node=1",
                "roles.rollout.share_with=actor",
                "roles.rollout.gpus_per_node=2",
                "roles.rollout.tensor_parallel=2",
            ],
            "--set roles.rollout.gpus_per_node: more than the 1 that actor has to share (got 2)",
        ),
        (
            [
                "roles.actor.gpus_per_node=1",
                "roles.rollout.share_with=actor",
                "roles.rollout.gpus_per_node=1",
                "roles.rollout.nodes=2",
            ],
            "--set roles.rollout.nodes: more than the 1 that actor has to share (got 2)",
        ),
    ],
)
def test_sharing_leads_to_a_set_that_is_large_enough(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    assert message in faults(tmp_path, *overrides)


def test_a_ring_of_sharing_is_refused(tmp_path: Path) -> None:
    messages = faults(
        tmp_path,
        "roles.actor.share_with=critic",
        "roles.critic.share_with=reference",
        "roles.reference.share_with=actor",
    )
    assert len(messages) == 3
    assert "but: actor -> critic -> reference -> actor" in messages[0]


def test_nccl_needs_gpus_and_several_gpu_ranks_need_nccl(tmp_path: Path) -> None:
    assert faults(tmp_path, "communication.collectives=nccl") == [
        "--set communication.collectives: nccl needs GPUs, and actor runs on CPUs (got 'nccl')\n"
        "  set roles.actor.gpus_per_node, or communication.collectives: gloo"
    ]
    on_gpus = ["roles.actor.gpus_per_node=2", "roles.actor.ranks_per_node=2"]
    (message,) = faults(tmp_path, *on_gpus, "communication.collectives=gloo")
    assert "gloo cannot gather what the GPU ranks of actor hold" in message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("slurm.options.time=3", "--set slurm.options.time: give this as slurm.time_minutes (got 3)"),
        ("slurm.options.nodes=3", "--set slurm.options.nodes: this option follows from the plan (got 3)"),
        ("slurm.options.uid=3", "--set slurm.options.uid: this option follows from the plan (got 3)"),
        (
            "slurm.options.x=1.5",
            "--set slurm.options.x: must be text or a whole number from -1000000000 to 1000000000 "
            "or true or false (got 1.5)",
        ),
        (
            "slurm.environment.CUDA_VISIBLE_DEVICES='0'",
            "--set slurm.environment.CUDA_VISIBLE_DEVICES: this variable is set by hpcflow or by Slurm "
            "(got '0')",
        ),
        (
            "slurm.environment.MASTER_PORT='1'",
            "--set slurm.environment.MASTER_PORT: this variable is set by hpcflow or by Slurm (got '1')",
        ),
        ("slurm.environment.A=1", "--set slurm.environment.A: must be text (got 1)"),
        (
            "slurm.environment.a-b=x",
            "--set slurm.environment.a-b: not a valid name: String should match pattern "
            "'^[A-Za-z_][A-Za-z0-9_]*$'",
        ),
        (
            'slurm.partition="a\\n#SBATCH --uid=0"',
            "--set slurm.partition: must not hold control characters (got 'a\\n#SBATCH --uid=0')",
        ),
        ("slurm.modules=[1]", "--set slurm.modules.0: must be text (got 1)"),
    ],
)
def test_the_slurm_table_is_checked(tmp_path: Path, override: str, message: str) -> None:
    assert faults(tmp_path, override) == [message]
