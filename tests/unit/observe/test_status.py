from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.readiness import not_ready
from hpcflow.observe.signs import duration
from hpcflow.observe.status import RunStatus, read_status
from hpcflow.rundir import RunDir
from tests.support.run_folder import WEIRD_NAME, RunMaker, elsewhere, gone_process, train_row

NOW = 1e6 + 600.0


def look(maker: RunMaker) -> RunStatus:
    return read_status(maker.run, clock=lambda: NOW)


def a_report(outcome: str = "failed") -> ExitReport:
    return msgspec.convert(
        {
            "attempt": 1,
            "outcome": outcome,
            "cause": "killed" if outcome == "failed" else outcome,
            "role": "actor",
            "rank": 1,
            "host": "node7",
            "message": "actor rank 1 was ended by SIGKILL",
            "signal": 9,
            "step": 12,
            "time": 1e6,
        },
        ExitReport,
    )


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / WEIRD_NAME)


def test_a_job_whose_supervisor_has_not_begun_is_queued(maker: RunMaker) -> None:
    maker.submitted()
    status = look(maker)
    assert (status.state, status.attempt, status.age_s) == ("queued", 0, None)
    assert status.name == WEIRD_NAME


def test_a_run_is_starting_until_the_driver_works(maker: RunMaker) -> None:
    maker.submitted().started()
    assert look(maker).state == "starting"
    maker.driving(phase="starting", step=0)
    assert look(maker).state == "starting"
    maker.driving(phase="generate")
    status = look(maker)
    assert (status.state, status.phase, status.step, status.steps) == ("running", "generate", 3, 200)


@pytest.mark.parametrize("outcome", ["done", "stopped", "failed"])
def test_a_report_is_the_last_word(maker: RunMaker, outcome: str) -> None:
    maker.submitted().started()
    maker.driving(step=12)
    maker.ended(a_report(outcome))
    status = look(maker)
    assert status.state == outcome
    assert status.over
    assert status.exit == a_report(outcome)


def test_a_killed_supervisor_makes_a_lost_run_with_its_age(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", alive=gone_process())
    maker.submitted()
    attempt = maker.started()
    maker.driving(step=12)
    maker.rows(train_row(12))
    sign = max(
        file.stat().st_mtime
        for file in (attempt.supervisor_json, maker.run.state_json, maker.run.metrics_jsonl)
    )
    status = read_status(maker.run, clock=lambda: sign + 240.0)
    assert status.state == "lost"
    assert status.reason == "the supervisor is gone without an exit report; last seen 4 min ago"
    assert status.age_s == 240.0


def test_a_job_that_died_before_its_supervisor_is_lost(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", alive=gone_process()).submitted()
    status = look(maker)
    assert (status.state, status.reason) == ("lost", "the job ended before its supervisor began")


def test_a_resumed_run_is_queued_in_spite_of_the_report_of_its_first_attempt(maker: RunMaker) -> None:
    maker.submitted().started()
    maker.driving(step=12)
    maker.ended(a_report("stopped"))
    maker.submitted(attempt=2)
    assert look(maker).state == "queued"
    maker.started(2)
    status = look(maker)
    assert (status.state, status.attempt, status.exit) == ("starting", 2, None)
    maker.driving(attempt=2, step=13)
    assert look(maker).state == "running"


def test_a_run_of_another_host_is_unknown_once_its_files_are_old(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", alive=elsewhere()).submitted()
    attempt = maker.started()
    maker.driving()
    sign = max(f.stat().st_mtime for f in (attempt.supervisor_json, maker.run.state_json))
    assert read_status(maker.run, clock=lambda: sign + 10.0).state == "running"
    status = read_status(maker.run, clock=lambda: sign + 600.0)
    assert status.state == "unknown"
    assert status.reason == f"runs on {maker.alive.host}; last seen 10 min ago"


def _no_job(maker: RunMaker) -> None:
    maker.run.job_json.unlink()


def _cut_job(maker: RunMaker) -> None:
    maker.run.job_json.write_bytes(maker.run.job_json.read_bytes()[:30])


def _cut_report(maker: RunMaker) -> None:
    maker.run.attempt(1).exit_json.write_text('{"outcome": "done"')


@pytest.mark.parametrize("damage", [_no_job, _cut_job, _cut_report])
def test_what_cannot_be_known_is_never_shown_as_good(
    tmp_path: Path, damage: Callable[[RunMaker], None]
) -> None:
    maker = RunMaker(tmp_path / "run", alive=gone_process()).submitted()
    maker.started()
    maker.driving()
    damage(maker)
    assert look(maker).state in ("unknown", "lost")


def test_figures_come_from_the_last_training_row_and_complete_checkpoints(maker: RunMaker) -> None:
    maker.submitted().started()
    maker.driving(heldout_before=0.25, heldout=0.5)
    maker.rows(train_row(1, reward=0.1), train_row(2, reward=0.2, kl=None))
    maker.checkpoint(10)
    maker.checkpoint(20, complete=False)
    status = look(maker)
    assert (status.reward, status.kl, status.tokens_per_second) == (0.2, None, 900.0)
    assert (status.checkpoint_step, status.heldout_before, status.heldout) == (10, 0.25, 0.5)


def test_status_is_json(maker: RunMaker) -> None:
    maker.submitted().started()
    maker.ended(a_report())
    encoded = msgspec.json.encode(look(maker))
    assert msgspec.json.decode(encoded)["exit"]["cause"] == "killed"


def test_durations_are_short() -> None:
    shown = [duration(seconds) for seconds in (0.4, 119, 240, 9000, 1e6)]
    assert shown == ["0 s", "119 s", "4 min", "2.5 h", "11.6 d"]


def test_nobody_is_waited_for_before_there_is_an_attempt(tmp_path: Path) -> None:
    assert not_ready(RunDir(tmp_path)) == []
