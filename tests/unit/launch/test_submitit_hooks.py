"""What is used of submitit, by name: these tests fail first when another version moves it."""

import inspect
from pathlib import Path

import pytest
import submitit
from submitit.core.utils import DelayedSubmission, JobPaths

from hpcflow.launch.entry import become_supervisor
from hpcflow.launch.local_executor import NO_LIMIT_MINUTES
from hpcflow.launch.slurm_executor import SlurmExecutor, SubmittedJob
from tests.support.fake_sbatch import a_tool


def test_the_local_executor_takes_a_limit_and_defaults_to_a_short_one(tmp_path: Path) -> None:
    executor = submitit.LocalExecutor(folder=tmp_path)
    executor.update_parameters(timeout_min=NO_LIMIT_MINUTES)
    assert executor.parameters["timeout_min"] == NO_LIMIT_MINUTES
    assert "timeout_min" in inspect.getsource(submitit.LocalExecutor._submit_command)


def test_the_pickle_holds_a_name_and_a_path_only(tmp_path: Path) -> None:
    path = tmp_path / "job.pkl"
    DelayedSubmission(become_supervisor, "/some/run").dump(path)
    content = path.read_bytes()
    assert b"hpcflow.launch.entry" in content
    assert b"become_supervisor" in content
    assert b"/some/run" in content
    assert len(content) < 1000


def test_a_submission_calls_the_hooks_that_are_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, once each, in this order; and nothing else of Slurm is called."""
    called: list[str] = []

    class Watched(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            called.append("text")
            return super()._make_submission_file_text(command, uid)

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            called.append("command")
            assert submission_file_path.read_text() == "the script"
            return super()._make_submission_command(submission_file_path)

        def _get_job_id_from_submission_command(self, string: str) -> str:
            called.append("id")
            return super()._get_job_id_from_submission_command(string)

    a_tool(tmp_path / "tools", "srun", "")
    a_tool(tmp_path / "tools", "sbatch", "echo 12")
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    executor = Watched(tmp_path / "folder", lambda mark: "the script")
    job = executor.submit(become_supervisor, "/some/run")
    assert called == ["text", "command", "id"]
    assert type(job) is SubmittedJob
    assert (job.job_id, executor.job_id) == ("12", "12")
    assert executor.script is not None
    assert executor.script.read_text() == "the script"


@pytest.mark.parametrize(
    ("hook", "parameters"),
    [
        ("_make_submission_file_text", ["self", "command", "uid"]),
        ("_make_submission_command", ["self", "submission_file_path"]),
        ("_get_job_id_from_submission_command", ["string"]),
    ],
)
def test_submitit_still_has_the_hook(hook: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(submitit.SlurmExecutor, hook)).parameters) == parameters


def test_nothing_else_of_the_executor_is_overridden() -> None:
    hooks = {name for name in vars(SlurmExecutor) if callable(vars(SlurmExecutor)[name])}
    assert hooks == {
        "__init__",
        "job_class",
        "_make_submission_file_text",
        "_make_submission_command",
        "_get_job_id_from_submission_command",
    }
    assert issubclass(SlurmExecutor.job_class, submitit.SlurmJob)


def test_a_handle_never_asks_for_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{a_tool(tmp_path, 'sacct', 'touch asked').parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    job = SubmittedJob(folder=tmp_path, job_id="12", tasks=[0])
    assert job.watcher.get_state("12", mode="force") == "UNKNOWN"
    assert not (tmp_path / "asked").exists()


def test_paths_replace_the_tags_that_run_folders_may_not_have() -> None:
    paths = JobPaths("/runs/100%jobs", job_id="7")
    assert str(paths.folder) == "/runs/1007obs"
