from pathlib import Path

import pytest

from hpcflow.errors import UserError
from hpcflow.launch.cluster import choose


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH but for the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def a_tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_without_slurm_auto_says_that_it_runs_here(tools: Path) -> None:
    assert choose("auto").executor == "local"
    assert choose("auto").reason == "no sbatch on PATH: running on this machine"
    assert choose("local").reason == ""


def test_slurm_without_sbatch_is_the_users_fault(tools: Path) -> None:
    with pytest.raises(UserError, match="sbatch is not on PATH") as caught:
        choose("slurm")
    assert caught.value.exit_code == 2


def test_on_a_slurm_machine_auto_says_what_it_does_not_do(tools: Path) -> None:
    a_tool(tools, "sbatch", "exit 1")
    a_tool(tools, "scontrol", 'echo "Slurmctld(primary) at head is UP"')
    assert "cannot submit to it yet" in choose("auto").reason
    with pytest.raises(UserError, match="cannot submit to Slurm yet"):
        choose("slurm")


@pytest.mark.parametrize("script", ['echo "Slurmctld(primary) at head is DOWN"', "exit 1"])
def test_a_silent_controller_is_named(tools: Path, script: str) -> None:
    a_tool(tools, "sbatch", "exit 1")
    a_tool(tools, "scontrol", script)
    assert choose("auto").reason == "sbatch is on PATH but no controller answers: running on this machine"
