"""Signals in real processes: reported at once, and death with the parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_job import lives, until

pytestmark = pytest.mark.dist

IN_A_LONG_C_CALL = """
import ctypes, os, signal, sys
from hpcflow.signals import on_signals
def told(signum):
    os.write(1, f"{signum} ".encode())
    if signum == signal.SIGINT:
        os._exit(7)
on_signals((signal.SIGTERM, signal.SIGINT), told)
os.write(1, b"begin ")
libc = ctypes.CDLL(None)
while True:
    libc.sleep(60)
"""

PARENT = """
import os, subprocess, sys, time
child = "import os, sys, time; from hpcflow.signals import die_with_parent; " \\
    "die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child, str(os.getpid())])
time.sleep(60)
"""

ORPHAN = "import sys; from hpcflow.signals import die_with_parent; die_with_parent({}); sys.exit(5)"


def test_a_signal_is_reported_while_the_main_thread_is_in_a_c_call() -> None:
    command = [sys.executable, "-c", IN_A_LONG_C_CALL]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"begin "
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read(3) == b"15 "
        process.send_signal(signal.SIGINT)
        assert process.stdout.read(2) == b"2 "
        assert process.wait(10) == 7


def test_a_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(10)
        until(lambda: not lives(child), timeout_s=5)


def test_a_child_whose_parent_is_gone_already_dies_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHAN.format(os.getpid() + 1)], timeout=30)
    assert ended.returncode == -signal.SIGKILL


def test_a_child_of_a_scheduler_lives_on(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHAN.format(None)], cwd=tmp_path, timeout=30)
    assert ended.returncode == 5
