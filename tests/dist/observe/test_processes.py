import subprocess
import sys
import time

import pytest

from hpcflow.observe.processes import ProcessMark
from tests.support.run_folder import elsewhere, gone_process, sleeping_process

pytestmark = pytest.mark.dist


def test_a_process_is_alive_until_it_ends() -> None:
    with sleeping_process() as process:
        mark = ProcessMark.of(process.pid)
        assert mark.liveness() == "alive"
    assert mark.liveness() == "gone"


def test_a_reused_pid_is_not_the_process() -> None:
    with sleeping_process() as process:
        mark = ProcessMark.of(process.pid)
        earlier = ProcessMark(mark.pid, mark.started - 60, mark.host)
        assert earlier.liveness() == "gone"
        assert earlier.process() is None


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    mark = ProcessMark.of(child.pid)
    deadline = time.monotonic() + 10
    while mark.liveness() != "gone" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mark.liveness() == "gone"
    child.wait(10)


def test_a_process_of_another_host_is_unknown() -> None:
    assert elsewhere().liveness() == "unknown"
    assert gone_process().liveness() == "gone"
