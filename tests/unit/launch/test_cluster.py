from pathlib import Path

import pytest

from hpcflow.errors import ClusterError, UserError
from hpcflow.launch.cluster import TOOLS, choose

UP = 'echo "Slurmctld(primary) at head is UP"'


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH but for the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return folder


def a_tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def all_tools(folder: Path, scontrol: str) -> None:
    for name in TOOLS:
        a_tool(folder, name, scontrol if name == "scontrol" else "exit 1")


def test_without_slurm_auto_says_that_it_runs_here(tools: Path) -> None:
    assert choose("auto").executor == "local"
    assert choose("auto").reason == "no sbatch on PATH: running on this machine"
    assert choose("local").reason == ""


def test_slurm_without_sbatch_is_refused_with_the_way_out(tools: Path) -> None:
    with pytest.raises(UserError, match="--cluster slurm: no sbatch on PATH") as caught:
        choose("slurm")
    assert caught.value.exit_code == 2
    assert "--cluster local" in caught.value.hint


def test_where_slurm_answers_it_takes_the_run_and_auto_says_so(tools: Path) -> None:
    all_tools(tools, UP)
    assert choose("auto").executor == "slurm"
    assert "a Slurm controller answers" in choose("auto").reason
    assert choose("slurm").executor == "slurm"
    assert choose("slurm").reason == ""
    assert choose("local").executor == "local"


@pytest.mark.parametrize("script", ['echo "Slurmctld(primary) at head is DOWN"', "exit 1"])
def test_a_silent_controller_is_named(tools: Path, script: str) -> None:
    all_tools(tools, script)
    assert choose("auto").executor == "local"
    assert choose("auto").reason == "sbatch is on PATH but no controller answers: running on this machine"
    with pytest.raises(ClusterError, match="no controller answers"):
        choose("slurm")


def test_a_configuration_that_is_not_there_is_named_at_once(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_tools(tools, UP)
    monkeypatch.setenv("SLURM_CONF", str(tools / "slurm.conf"))
    assert choose("auto").executor == "local"
    with pytest.raises(ClusterError, match="SLURM_CONF names no file"):
        choose("slurm")
    (tools / "slurm.conf").touch()
    assert choose("slurm").executor == "slurm"


def test_half_an_installation_is_named(tools: Path) -> None:
    all_tools(tools, UP)
    (tools / "srun").unlink()
    assert choose("auto").reason == "sbatch is on PATH but srun is not: running on this machine"
