"""The supervisor over real processes that misbehave in every way we know."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from hpcflow.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEUE
from hpcflow.observe.exit_report import read_exit
from hpcflow.rundir import RunDir
from tests.support.fake_job import FakeJob, fake_job, lives, until
from tests.support.specs import tiny_spec

pytestmark = pytest.mark.dist
NAME = "a run, 'quoted'"


class Start(Protocol):
    def __call__(
        self, behaviours: dict[str, str], *overrides: str, name: str = NAME, actors: int = 1
    ) -> FakeJob: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def make(behaviours: dict[str, str], *overrides: str, name: str = NAME, actors: int = 1) -> FakeJob:
            spec = tiny_spec(tmp_path / "spec", *overrides)
            return stack.enter_context(fake_job(tmp_path / name, spec, behaviours, actors=actors))

        yield make


def ends_within_5_s(job: FakeJob) -> int:
    started = time.monotonic()
    code = job.end()
    assert time.monotonic() - started < 5
    assert job.left() == {}
    return code


def test_a_driver_that_is_done_ends_the_run(start: Start) -> None:
    job = start({"driver.0": "is_done"})
    assert job.end() == EXIT_OK
    report = job.report()
    assert (report.outcome, report.cause, report.exit_code) == ("done", "done", 0)
    assert job.left() == {}
    attempt = job.run.attempts()[-1]
    assert '"endpoint": "tcp://127.0.0.1:' in attempt.endpoints_json.read_text()
    assert attempt.supervisor_json.exists()


def test_a_role_that_exits_is_named_with_its_code(start: Start) -> None:
    job = start({"actor.1": "exits_42"}, actors=2)
    job.wait_until_driving()
    assert ends_within_5_s(job) == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.exit_code) == ("actor", 1, 42)
    assert (report.outcome, report.cause, report.signal) == ("failed", "exited", None)
    assert report.host


def test_a_role_that_leaves_with_code_0_is_a_failure_too(start: Start) -> None:
    job = start({"reward.0": "leaves_cleanly"})
    job.wait_until_driving()
    assert ends_within_5_s(job) == EXIT_FAILED
    report = job.report()
    assert (report.role, report.exit_code, report.cause) == ("reward", 0, "exited")


def test_a_killed_rank_is_the_cause_not_its_consequences(start: Start) -> None:
    job = start({}, actors=2)
    victim = job.wait_until_driving()["actor.1"]
    signal.pidfd_send_signal(_pidfd(victim), signal.SIGKILL)
    assert ends_within_5_s(job) == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.cause) == ("actor", 1, "killed")
    assert report.signal == signal.SIGKILL


def test_a_killed_driver_is_named(start: Start) -> None:
    job = start({})
    signal.pidfd_send_signal(_pidfd(job.wait_until_driving()["driver.0"]), signal.SIGKILL)
    assert ends_within_5_s(job) == EXIT_FAILED
    assert (job.report().role, job.report().cause) == ("driver", "killed")


def test_a_hanging_rank_is_named_by_the_call_that_timed_out(start: Start) -> None:
    job = start({"driver.0": "times_out"}, actors=2)
    assert job.end() == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.cause) == ("actor", 1, "rpc_timeout")
    assert job.left() == {}


def test_a_rank_that_never_is_ready_is_named(start: Start) -> None:
    job = start({"actor.1": "never_ready"}, "health.start_timeout_s=2", actors=2)
    pids = job.wait_for("actor.1", "actor.1.child")
    assert job.end() == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.cause) == ("actor", 1, "start_timeout")
    assert report.message == "not ready within 2 s: actor rank 1"
    assert not lives(pids["actor.1.child"])


def test_a_crash_during_the_start_shows_the_end_of_the_log(start: Start) -> None:
    job = start({"reward.0": "crashes"})
    assert job.end() == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.cause) == ("reward", 0, "exited")
    assert report.tail[-1] == "ValueError: cannot load the model"
    assert report.log.endswith("reward.0.log")


def test_a_fault_that_a_process_reports_is_the_cause(start: Start) -> None:
    job = start({"actor.0": "finds_fault"})
    assert job.end() == EXIT_FAILED
    report = job.report()
    assert (report.role, report.rank, report.cause) == ("actor", 0, "data")
    assert (report.message, report.hint) == ("no chat template", "add it")
    assert report.exit_code == EXIT_FAILED
    assert report.tail == ["looking at the data"]


def test_another_version_of_the_contract_is_refused(start: Start) -> None:
    job = start({"reward.0": "wrong_contract"})
    assert job.end() == EXIT_FAILED
    host = job.report().host
    assert job.report().message.startswith(f"reward rank 0 on {host} serves contract 2")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_a_request_to_stop_lets_the_driver_save(start: Start, signum: signal.Signals) -> None:
    job = start({})
    job.wait_until_driving()
    job.supervisor.send_signal(signum)
    # What a person stops by INT is not to be requeued.
    assert ends_within_5_s(job) == (EXIT_INTERRUPTED if signum == signal.SIGINT else EXIT_REQUEUE)
    assert "saved" in job.pids()
    assert (job.report().outcome, job.report().cause) == ("stopped", "stopped")


def test_term_to_a_role_stops_the_run_and_its_death_is_no_cause(start: Start) -> None:
    job = start({"driver.0": "cannot_stop"})
    actor = job.wait_until_driving()["actor.0"]
    signal.pidfd_send_signal(_pidfd(actor), signal.SIGTERM)
    log = job.run.attempts()[-1].log("supervisor", 0)
    until(lambda: "send USR2 to the driver" in log.read_text())
    signal.pidfd_send_signal(_pidfd(actor), signal.SIGKILL)
    until(lambda: "actor rank 0 ended" in log.read_text())
    driver = job.pids()["driver.0"]
    assert lives(driver)
    signal.pidfd_send_signal(_pidfd(driver), signal.SIGKILL)
    assert job.end() == EXIT_REQUEUE
    assert (job.report().outcome, job.report().cause) == ("stopped", "preempted")


def test_a_second_request_ends_everything_at_once(start: Start) -> None:
    job = start({"driver.0": "cannot_stop"})
    job.wait_until_driving()
    job.supervisor.send_signal(signal.SIGINT)
    log = job.run.attempts()[-1].log("supervisor", 0)
    until(lambda: "send USR2 to the driver" in log.read_text())
    job.supervisor.send_signal(signal.SIGINT)
    assert ends_within_5_s(job) == EXIT_FAILED
    assert (job.report().outcome, job.report().cause) == ("stopped", "aborted")


def test_nothing_stays_when_a_role_with_descendants_dies(start: Start) -> None:
    job = start({"reward.0": "with_family"})
    pids = job.wait_until_driving()
    assert lives(pids["orphan"])
    signal.pidfd_send_signal(_pidfd(pids["reward.0"]), signal.SIGKILL)
    assert ends_within_5_s(job) == EXIT_FAILED
    assert (job.report().role, job.report().cause) == ("reward", "killed")


def test_nothing_stays_when_the_supervisor_is_killed(start: Start) -> None:
    job = start({"reward.0": "with_family", "actor.1": "never_ready"}, actors=2)
    pids = job.wait_for("actor.0", "actor.1.child", "reward.0.child", "orphan", "driver.0")
    job.supervisor.kill()
    job.supervisor.wait(10)
    assert until(lambda: not job.left()) < 5
    until(lambda: job.run.attempts()[-1].exit_json.exists())
    report = job.report()
    assert (report.role, report.cause) == ("supervisor", "supervisor_lost")
    assert len(pids) >= 7


def test_two_supervisors_on_one_host_do_not_collide(start: Start) -> None:
    first = start({}, name="one")
    second = start({}, name="two")
    first.wait_until_driving()
    second.wait_until_driving()
    first.supervisor.kill()
    first.supervisor.wait(10)
    until(lambda: not first.left())
    assert set(second.left()) >= {"actor.0", "reward.0", "driver.0"}
    second.supervisor.send_signal(signal.SIGTERM)
    assert second.end() == EXIT_REQUEUE


def _pidfd(pid: int) -> int:
    """A descriptor of the process, so that no other can be signalled."""
    return os.pidfd_open(pid)


def test_a_run_folder_without_a_plan_is_reported(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-m", "hpcflow.job", str(tmp_path)], timeout=60)
    assert ended.returncode == EXIT_FAILED
    report = read_exit(RunDir(tmp_path).attempt(1))
    assert report is not None
    assert (report.role, report.cause) == ("supervisor", "supervisor_error")
    assert "plan.json" in report.message
    assert "Traceback (most recent call last):" in report.tail
