import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcflow.job import commands
from hpcflow.job.verdict import THE_DRIVER, Member
from hpcflow.plan.build import build
from hpcflow.plan.plan import Plan
from hpcflow.rpc.identity import ProcessIdentity
from hpcflow.spec.run import RunSpec
from tests.support.specs import tiny_spec

ACTOR, ROLLOUT = Member("actor", 0), Member("rollout", 0)


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return tiny_spec(
        tmp_path,
        "slurm.environment.TZ=UTC",
        "slurm.nccl.NCCL_DEBUG=WARN",
        "slurm.driver.cpus_per_rank=3",
    )


@pytest.fixture
def plan(spec: RunSpec) -> Plan:
    """The actor on GPU 0, the rollout on GPUs 1 and 2."""
    plan = build(spec)

    def on(role: Member, gpus: tuple[int, ...]) -> None:
        nonlocal plan
        roles = tuple(
            replace(item, ranks=(replace(item.ranks[0], gpus=gpus),)) if item.role == role.role else item
            for item in plan.roles
        )
        plan = replace(plan, roles=roles)

    on(ACTOR, (0,))
    on(ROLLOUT, (1, 2))
    return plan


def gpus(member: Member, plan: Plan, spec: RunSpec, granted: str | None) -> str:
    base = {} if granted is None else {"CUDA_VISIBLE_DEVICES": granted}
    names = commands.local_gpus(replace(plan, gpus_per_node=3), base)
    return commands.environment(member, plan, spec, base=base, gpus=names)["CUDA_VISIBLE_DEVICES"]


def test_gpus_are_positions_in_what_was_granted(plan: Plan, spec: RunSpec) -> None:
    assert gpus(ROLLOUT, plan, spec, "4,GPU-5ab,6") == "GPU-5ab,6"
    assert gpus(ACTOR, plan, spec, "4,GPU-5ab,6") == "4"
    assert gpus(ROLLOUT, plan, spec, None) == "1,2"


def test_processes_without_gpus_see_none(plan: Plan, spec: RunSpec) -> None:
    assert gpus(Member("reward", 0), plan, spec, "4,5,6") == ""
    assert gpus(THE_DRIVER, plan, spec, "4,5,6") == ""


def test_the_spec_adds_to_the_environment(plan: Plan, spec: RunSpec) -> None:
    found = commands.environment(THE_DRIVER, plan, spec, base={"HOME": "/home/a b"}, gpus={})
    assert found["HOME"] == "/home/a b"
    assert found["TZ"] == "UTC"
    assert found["NCCL_DEBUG"] == "WARN"
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["HF_HUB_OFFLINE"] == "1"


def test_every_process_of_the_plan_has_an_identity(plan: Plan) -> None:
    own = ProcessIdentity(
        run_dir=Path("/runs/x"),
        attempt=1,
        control="tcp://127.0.0.1:1",
        token="secret",
        role="supervisor",
        rank=0,
        local_rank=0,
        world_size=1,
        address="127.0.0.1",
        parent=None,
    )
    found = commands.identities(plan, own)
    assert set(found) == {THE_DRIVER, *(member for member, _, _ in commands.ranks(plan))}
    assert found[ACTOR].role == "actor"
    assert found[ACTOR].parent == os.getpid()
    assert found[ACTOR].token == "secret"


def test_a_users_command_is_started_by_a_wrapper_and_the_container_is_for_the_command_only() -> None:
    prefix = ["apptainer", "exec", "a b.sif"]
    wrapped = commands.command_line(Member("server", 0), prefix)
    assert wrapped[1:] == ["-m", "hpcflow.job.command_role", "server", *prefix]
    assert commands.command_line(ACTOR, prefix)[:4] == [*prefix, wrapped[0]]
    of_commands = {m for m in (ACTOR, THE_DRIVER, Member("server", 1)) if commands.is_command(m)}
    assert of_commands == {Member("server", 1)}


def test_a_command_has_variables_and_gpus_of_its_own(tmp_path: Path) -> None:
    table = "{command: [a], gpus_per_rank: 2, cpus_per_rank: 5, environment: {TZ: CET, HF_HUB_OFFLINE: '0'}}"
    overrides = ("slurm.environment.TZ=UTC", "slurm.gpus_per_node=2")
    spec = tiny_spec(tmp_path, f"commands.server={table}", *overrides)
    server, plan = Member("server", 0), build(spec)
    found = commands.environment(server, plan, spec, base={}, gpus={0: "4", 1: "6"})
    assert (found["TZ"], found["HF_HUB_OFFLINE"], found["OMP_NUM_THREADS"]) == ("CET", "0", "5")
    assert found["CUDA_VISIBLE_DEVICES"] == "4,6"
    others = commands.environment(ACTOR, plan, spec, base={}, gpus={})
    assert (others["TZ"], others["HF_HUB_OFFLINE"]) == ("UTC", "1")


def test_command_lines_hold_no_secret() -> None:
    assert commands.command_line(ACTOR)[1:] == ["-m", "hpcflow.roles", "actor"]
    assert commands.command_line(THE_DRIVER)[1:] == ["-m", "hpcflow.driver"]
