import re
from datetime import datetime
from pathlib import Path

import pytest

from hpcflow.errors import RunDirError, UserError
from hpcflow.launch import runs
from tests.support.run_folder import WEIRD_NAME, RunMaker

NOON = datetime(2026, 12, 1, 12, 0, 0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCFLOW_RUNS", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("name", "slug"),
    [("sums", "sums"), ("My Run, no. 3!", "my-run-no-3"), ("\u00dcber \u4e2d", "uber"), ("'\u4e2d'", "run")],
)
def test_a_fresh_name_is_a_slug_a_time_and_four_hex_digits(name: str, slug: str) -> None:
    fresh = runs.fresh_name(name, NOON)
    assert re.fullmatch(re.escape(slug) + "-20261201-120000-[0-9a-f]{4}", fresh)
    assert len({runs.fresh_name(name, NOON) for _ in range(50)}) > 1


def test_a_run_is_found_by_folder_name_and_job_id(root: Path) -> None:
    maker = RunMaker(root / WEIRD_NAME).submitted(job_id="4711")
    for name in (str(maker.path), f"runs/{WEIRD_NAME}", WEIRD_NAME, "4711"):
        assert runs.find(name).path == maker.path.resolve()


@pytest.mark.parametrize("name", ["123", "123+0", "123+1", "123+1.0", "123.batch", "123.4", "123.extern"])
def test_a_run_is_found_by_every_way_slurm_names_its_job(root: Path, name: str) -> None:
    run = RunMaker(root / "mine").submitted_to_slurm(job_id="123").run
    RunMaker(root / "other").submitted_to_slurm(job_id="1234")
    assert runs.find(name).path == run.path


@pytest.mark.parametrize(
    "name", ["124+1", "124.batch", "123_1", "123+", "+1", "123.", "123+1.x", "0123", "12"]
)
def test_what_only_looks_like_the_job_is_not_it(root: Path, name: str) -> None:
    RunMaker(root / "mine").submitted_to_slurm(job_id="123")
    RunMaker(root / "local").submitted(job_id="124")
    with pytest.raises(UserError, match="no run"):
        runs.find(name)


def test_the_folder_of_runs_can_be_elsewhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "other place"
    monkeypatch.setenv("HPCFLOW_RUNS", str(elsewhere))
    RunMaker(elsewhere / "mine").submitted()
    assert runs.find("mine").path == elsewhere / "mine"


def test_an_unknown_run_lists_likely_ones_first(root: Path) -> None:
    for name in ("sums-1", "other", "sums-2"):
        RunMaker(root / name).submitted(job_id=name)
    with pytest.raises(UserError) as caught:
        runs.find("sums-3")
    assert caught.value.exit_code == 2
    listed = [line.strip() for line in caught.value.hint.splitlines()[1:]]
    assert set(listed[:2]) == {"sums-1", "sums-2"}
    assert listed[2] == "other"


def test_an_ambiguous_job_id_lists_its_runs(root: Path) -> None:
    for name in ("one", "two"):
        RunMaker(root / name).submitted(job_id="99")
    with pytest.raises(UserError, match="'99' fits 2 runs") as caught:
        runs.find("99")
    assert str(root / "one") in caught.value.hint
    assert str(root / "two") in caught.value.hint


def test_a_name_that_fits_here_and_among_the_runs_is_ambiguous(root: Path, tmp_path: Path) -> None:
    RunMaker(root / "x").submitted()
    RunMaker(tmp_path / "x").submitted()
    with pytest.raises(UserError, match="fits 2 runs"):
        runs.find("x")


def test_a_folder_without_a_run_says_so(root: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(RunDirError, match="is no run folder"):
        runs.find("plain")
    with pytest.raises(UserError, match="no run ''"):
        runs.find("")


def test_a_taken_folder_is_refused_and_left_alone(root: Path, tmp_path: Path) -> None:
    taken = RunMaker(root / "taken").submitted()
    before = sorted(taken.path.iterdir())
    with pytest.raises(RunDirError, match="holds another run"):
        runs.check_free(taken.path)
    assert sorted(taken.path.iterdir()) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a").touch()
    with pytest.raises(RunDirError, match="is not empty"):
        runs.check_free(tmp_path / "notes")
    with pytest.raises(RunDirError, match="is a file"):
        runs.check_free(tmp_path / "notes" / "a")
    with pytest.raises(RunDirError, match="%j in a path"):
        runs.check_free(tmp_path / "100%jobs" / "run")
    (tmp_path / "empty").mkdir()
    runs.check_free(tmp_path / "empty")
    runs.check_free(tmp_path / "new")


@pytest.mark.parametrize("name", ["ppo/qwen", "..", "/", "a-b:c", "\U0001f389"])
def test_a_name_of_anything_printable_gives_the_folder_a_plain_name(name: str) -> None:
    plain = r"[a-z0-9]+(-[a-z0-9]+)*-\d{8}-\d{6}-[0-9a-f]{4}"
    assert re.fullmatch(plain, runs.fresh_name(name, datetime(2026, 1, 1)))
