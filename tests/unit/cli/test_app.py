from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow import __version__
from hpcflow.cli import app
from hpcflow.errors import ClusterError
from hpcflow.launch import local_executor, machine
from hpcflow.observe.job import write_cancelled
from tests.support.golden import check_golden
from tests.support.run_folder import RunMaker
from tests.support.specs import complete_spec


class Shell:
    """Calls the command line in this process, in a folder of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(sys, "argv", ["hpcflow", *arguments])
        with pytest.raises(SystemExit) as caught:
            app.main()
        out, err = self._capsys.readouterr()
        return int(caught.value.code or 0), out, err


@pytest.fixture
def hpcflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCFLOW_RUNS", raising=False)
    tools = tmp_path / "no tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    return Shell(monkeypatch, capsys)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return complete_spec(tmp_path / "a spec, 'quoted'")


def test_version(hpcflow: Shell) -> None:
    assert hpcflow("--version") == (0, f"hpcflow {__version__}\n", "")


def test_help_names_every_command(hpcflow: Shell) -> None:
    code, out, _ = hpcflow("--help")
    assert code == 0
    for command in ("plan", "submit", "status", "logs", "cancel", "resume"):
        assert f"\n  {command} " in out


def test_plan_prints_tables_or_json(hpcflow: Shell, spec: Path) -> None:
    code, out, err = hpcflow("plan", str(spec), "--set", "steps=7")
    assert (code, err) == (0, "")
    assert out.startswith("tiny: 7 steps on 1 node, no GPU\n")
    code, out, _ = hpcflow("plan", str(spec), "--json")
    assert json.loads(out)["batching"]["samples_per_step"] == 8


def test_a_dry_run_writes_nothing(hpcflow: Shell, spec: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = hpcflow("submit", str(spec), "--dry-run", "--run-dir", "some run")
    assert code == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert f"run folder: {tmp_path / 'some run'}" in out
    assert "no sbatch on PATH: running on this machine" in out
    assert f"  actor.0       {sys.executable} -m hpcflow.roles actor\n" in out
    assert f"-m hpcflow.job '{tmp_path / 'some run'}'\n" in out
    assert out.count("--nodelist=NODE0 ") == 5
    assert "#!/bin/bash" in out


def test_a_dry_run_shows_the_script_for_slurm_where_there_is_none(hpcflow: Shell, spec: Path) -> None:
    code, out, _ = hpcflow("submit", str(spec), "--dry-run", "--cluster", "slurm", "--json")
    assert code == 0
    shown = json.loads(out)
    assert "#SBATCH --nodes=1" in shown["batch_script"]
    assert (shown["executor"], shown["refusal"]) == ("slurm", None)
    assert list(shown["srun"]) == ["actor", "critic", "reference", "reward", "rollout"]
    assert all("--nodelist=NODE0 " in line for line in shown["srun"].values())
    assert shown["commands"]["supervisor"].endswith(" slurm")


REFUSED: dict[str, tuple[str, ...]] = {
    "no-spec": ("submit", "missing.yaml"),
    "unknown-key": ("submit", "SPEC", "--set", "roles.actor.optimiser.learning_rate=1"),
    "no-gpus": (
        "submit",
        "SPEC",
        "--set",
        "roles.actor.gpus_per_node=1",
        "--set",
        "slurm.gpus_per_node=1",
    ),
    "no-run": ("status", "nothing"),
    "resume-nothing": ("resume", "nothing"),
    "logs-nothing": ("logs", "nothing"),
    "cancel-nothing": ("cancel", "nothing"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_the_users_faults_are_exit_code_2_without_a_trace(
    hpcflow: Shell, spec: Path, tmp_path: Path, fault: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    arguments = [str(spec) if argument == "SPEC" else argument for argument in REFUSED[fault]]
    code, out, err = hpcflow(*arguments)
    assert (code, out) == (2, "")
    assert sorted(tmp_path.rglob("*")) == before
    check_golden(f"errors/{fault}.txt", err.replace(str(tmp_path), "HERE"))


def test_slurm_where_there_is_none_is_refused_with_the_way_out(
    hpcflow: Shell, spec: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = hpcflow("submit", str(spec), "--cluster", "slurm")
    assert (code, out) == (2, "")
    assert sorted(tmp_path.rglob("*")) == before
    check_golden("errors/no-slurm.txt", err)


def test_what_the_system_refuses_is_one_line_and_no_trace(hpcflow: Shell, spec: Path) -> None:
    for arguments in (
        ("status", "a" * 300),
        ("plan", str(spec), "--set", f"model.path={'a' * 300}"),
        ("submit", str(spec), "--run-dir", "a" * 300),
    ):
        code, out, err = hpcflow(*arguments)
        assert (code, out) == (2, "")
        assert err.endswith("...: File name too long\n")
        assert err.count("\n") == 1


def test_missing_engines_are_found_before_anything_is_written(
    hpcflow: Shell, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ENGINES", ("torch", "no-such-engine"))
    code, _, err = hpcflow("submit", str(spec))
    assert code == 2
    assert "hpcflow: not installed: no-such-engine" in err
    assert not (tmp_path / "runs").exists()


def test_another_run_in_the_folder_is_left_alone(hpcflow: Shell, spec: Path, tmp_path: Path) -> None:
    taken = RunMaker(tmp_path / "taken").submitted()
    content = taken.run.spec_json.read_text()
    code, _, err = hpcflow("submit", str(spec), "--run-dir", "taken")
    assert code == 2
    assert "holds another run" in err
    assert taken.run.spec_json.read_text() == content


@pytest.mark.parametrize("existed", [False, True])
def test_a_failed_submission_leaves_no_half_made_folder(
    hpcflow: Shell, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    def refuse(run: object, attempt: int) -> None:
        raise ClusterError("the local executor ended with exit code 1")

    monkeypatch.setattr(local_executor, "launch", refuse)
    folder = tmp_path / "new run"
    if existed:
        folder.mkdir()
    code, _, err = hpcflow("submit", str(spec), "--run-dir", str(folder))
    assert (code, err) == (4, "hpcflow: the local executor ended with exit code 1\n")
    assert folder.exists() == existed
    assert not existed or not any(folder.iterdir())


def test_a_bug_keeps_its_trace(hpcflow: Shell, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(machine, "check_engines", lambda plan: broken())
    monkeypatch.setattr(sys, "argv", ["hpcflow", "submit", str(spec)])
    with pytest.raises(ZeroDivisionError):
        app.main()


def test_status_and_cancel_speak_json(hpcflow: Shell, tmp_path: Path) -> None:
    from tests.support.run_folder import gone_process

    RunMaker(tmp_path / "runs" / "mine", alive=gone_process()).submitted(job_id="12")
    code, out, _ = hpcflow("status", "12", "--json")
    assert (code, json.loads(out)["state"]) == (0, "lost")
    code, out, _ = hpcflow("cancel", "mine")
    assert code == 0
    assert out.startswith("nothing to cancel: mine is lost: the job ended")


def test_logs_are_merged_and_chosen(hpcflow: Shell, tmp_path: Path) -> None:
    from tests.support.run_folder import gone_process

    maker = RunMaker(tmp_path / "runs" / "mine", alive=gone_process()).submitted()
    attempt = maker.started()
    attempt.log("actor", 0).write_text("a0\nunfinished")
    attempt.log("driver", 0).write_text("d0\n")
    assert hpcflow("logs", "mine")[1] == "1/actor.0 | a0\n1/actor.0 | unfinished\n1/driver.0 | d0\n"
    assert hpcflow("logs", "mine", "--role", "driver")[1] == "1/driver.0 | d0\n"
    assert hpcflow("logs", "mine", "--follow", "--rank", "0")[1].count("\n") == 3
    code, _, err = hpcflow("logs", "mine", "--role", "critic")
    assert (code, "there are: actor.0, driver.0" in err) == (2, True)
    for wrong in ("2", "0", "x", "-1"):
        code, _, err = hpcflow("logs", "mine", "--attempt", wrong)
        assert (code, "attempts: 1; or `all`" in err) == (2, True)


def test_logs_of_all_attempts_and_of_the_batch_script(hpcflow: Shell, tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "runs" / "mine").submitted_to_slurm(job_id="123")
    write_cancelled(maker.run, "123")
    assert hpcflow("logs", "123+1") == (0, "\n", "")
    maker.run.batch_log.write_text("batch\n")
    assert hpcflow("logs", "123+1") == (0, "batch\n", "")
    maker.started(1).log("step_actor", 0).write_text("one\n")
    maker.started(2).log("actor", 0).write_text("two\n")
    for arguments, lines in [
        ((), "2/actor.0 | two\nbatch.0 | batch\n"),
        (("--follow",), "2/actor.0 | two\nbatch.0 | batch\n"),
        (("--attempt", "all"), "1/step_actor.0 | one\n2/actor.0 | two\nbatch.0 | batch\n"),
        (("--attempt", "1"), "1/step_actor.0 | one\n"),
        (("--attempt", "1", "--follow"), "1/step_actor.0 | one\n"),
        (("--attempt", "all", "--role", "actor"), "2/actor.0 | two\n"),
        (("--role", "batch"), "batch.0 | batch\n"),
    ]:
        assert hpcflow("logs", "mine", *arguments) == (0, lines, "")


def test_to_follow_an_attempt_of_the_past_ends_with_it(hpcflow: Shell, tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "runs" / "mine").submitted()
    maker.started(1).log("actor", 0).write_text("one\n")
    maker.started(2).log("actor", 0).write_text("two\n")
    assert json.loads(hpcflow("status", "mine", "--json")[1])["state"] == "starting"
    assert hpcflow("logs", "mine", "--attempt", "1", "--follow") == (0, "1/actor.0 | one\n", "")


def test_status_of_a_slurm_run_needs_no_slurm_command(hpcflow: Shell, tmp_path: Path) -> None:
    """As on a laptop that has the run folder only."""
    RunMaker(tmp_path / "runs" / "mine").submitted_to_slurm(job_id="123")
    code, out, err = hpcflow("status", "123.batch")
    assert (code, err) == (0, "")
    assert "state      unknown: Slurm did not answer (squeue cannot be run" in out
    assert json.loads(hpcflow("status", "mine", "--json")[1])["slurm"]["answer"] == "silent"
    code, _, err = hpcflow("cancel", "mine")
    assert (code, "Slurm did not answer" in err, "nothing was done to the job" in err) == (4, True, True)


@pytest.mark.parametrize("command", [("--help",), ("status", "--help"), ("status", "nothing")])
def test_the_command_line_imports_nothing_that_it_does_not_need(command: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['hpcflow', *{command!r}]\n"
        "from hpcflow.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'vllm', 'deepspeed', 'transformers', 'submitit', 'rich', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"
