from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hpcflow.errors import UserError
from hpcflow.launch import local_job
from hpcflow.launch.handle import JobHandle
from hpcflow.observe.processes import ProcessMark
from tests.support.fake_supervisor import fake_supervisor
from tests.support.run_folder import WEIRD_NAME, RunMaker, elsewhere, gone_process, sleeping_process

pytestmark = pytest.mark.dist


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    """A submitted run whose controller is gone."""
    return RunMaker(tmp_path / WEIRD_NAME, alive=gone_process()).submitted()


def signals(maker: RunMaker) -> list[int]:
    path = maker.path / "signals.txt"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def child(maker: RunMaker) -> int:
    return int((maker.path / "child.txt").read_text())


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_cancel_asks_once_and_waits_for_the_end(maker: RunMaker) -> None:
    with fake_supervisor(maker.run, "obeys"):
        ending = JobHandle(maker.run).cancel(20.0)
        assert (ending.how, ending.status.state) == ("asked", "stopped")
        assert signals(maker) == [signal.SIGUSR2]


def test_cancel_twice_leaves_an_ended_run_alone(maker: RunMaker) -> None:
    with fake_supervisor(maker.run, "obeys"):
        JobHandle(maker.run).cancel(20.0)
    ending = JobHandle(maker.run).cancel(20.0)
    assert (ending.how, ending.status.state) == ("over already", "stopped")


def test_a_supervisor_that_takes_too_long_is_asked_again(maker: RunMaker) -> None:
    with fake_supervisor(maker.run, "slow"):
        ending = JobHandle(maker.run).cancel(0.3)
        assert (ending.how, ending.status.state) == ("at once", "stopped")
        assert signals(maker) == [signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM]


def test_a_second_cancel_leaves_the_first_its_checkpoint(maker: RunMaker) -> None:
    with fake_supervisor(maker.run, "slow") as supervisor, ThreadPoolExecutor() as pool:
        cancels = [pool.submit(JobHandle(maker.run).cancel, 20.0) for _ in range(2)]
        time.sleep(0.5)
        assert supervisor.status() != psutil.STATUS_ZOMBIE
        assert set(signals(maker)) == {signal.SIGUSR2}
        for _ in range(2):
            supervisor.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert [cancel.result(20).how for cancel in cancels] == ["asked", "asked"]


def test_a_deaf_supervisor_is_killed_with_its_children(
    maker: RunMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_job, "END_AT_ONCE_S", 0.3)
    with fake_supervisor(maker.run, "deaf") as supervisor:
        ending = JobHandle(maker.run).cancel(0.2)
        assert ending.how == "killed"
        assert ending.status.state == "lost"
        assert supervisor.status() == psutil.STATUS_ZOMBIE
        assert ended(child(maker))


def test_before_the_supervisor_is_known_the_controller_is_asked(tmp_path: Path) -> None:
    with sleeping_process() as controller:
        maker = RunMaker(tmp_path / "run", alive=ProcessMark.of(controller.pid)).submitted()
        assert JobHandle(maker.run).cancel(20.0).status.state == "lost"
        assert controller.wait(10) == -signal.SIGTERM


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    with sleeping_process() as stranger:
        mark = ProcessMark.of(stranger.pid)
        maker = RunMaker(tmp_path / "run", alive=ProcessMark(mark.pid, mark.started - 60, mark.host))
        maker.submitted().started()
        assert JobHandle(maker.run).cancel(1.0).how == "over already"
        assert JobHandle(maker.run).end_at_once().how == "killed"
        assert stranger.poll() is None


def test_a_run_of_another_host_is_ended_there(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", alive=elsewhere()).submitted()
    maker.started()
    with pytest.raises(UserError, match="runs on not-"):
        JobHandle(maker.run).cancel(1.0)


def test_a_request_to_stop_is_sent_once_however_often_it_is_made(maker: RunMaker) -> None:
    with fake_supervisor(maker.run, "slow") as supervisor:
        handle = JobHandle(maker.run)
        for _ in range(20):
            assert handle.ask_to_stop(signal.SIGINT)
        deadline = time.monotonic() + 20
        while not signals(maker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert signals(maker) == [signal.SIGINT]
        assert supervisor.is_running()
