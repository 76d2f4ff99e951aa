"""What is used of submitit, by name: these tests fail first when another version moves it."""

import inspect
from pathlib import Path

import submitit
from submitit.core.utils import DelayedSubmission, JobPaths

from hpcflow.launch.entry import become_supervisor
from hpcflow.launch.local_executor import NO_LIMIT_MINUTES


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


def test_paths_replace_the_tags_that_run_folders_may_not_have() -> None:
    paths = JobPaths("/runs/100%jobs", job_id="7")
    assert str(paths.folder) == "/runs/1007obs"
