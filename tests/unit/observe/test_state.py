from pathlib import Path

import pytest

from hpcflow import atomic
from hpcflow.observe.state import DriverState, StateFile, read_state
from hpcflow.rundir import RunDir
from tests.support.clock import ManualClock


def first_state(clock: ManualClock) -> DriverState:
    now = clock.now()
    return DriverState(attempt=1, step=0, steps=9, phase="starting", time=now, started=now)


def test_state_is_written_at_most_once_a_second_and_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    write = atomic.write_json

    def counted(path: Path, content: object) -> None:
        nonlocal writes
        writes += 1
        write(path, content)

    monkeypatch.setattr(atomic, "write_json", counted)
    clock, run = ManualClock(), RunDir(tmp_path)
    file = StateFile(run.state_json, first_state(clock), clock=clock.now)
    for step in range(1, 101):
        clock.wait(0.1)
        file.update(step=step)
    assert writes <= 1 + 10
    file.update(phase="done")
    file.flush()
    read = read_state(run)
    assert read is not None
    assert (read.step, read.phase, read.time) == (100, "done", clock.now())


def test_a_clock_that_jumps_back_does_not_silence_the_driver(tmp_path: Path) -> None:
    clock, run = ManualClock(), RunDir(tmp_path)
    file = StateFile(run.state_json, first_state(clock), clock=clock.now)
    clock.time -= 3600
    file.update(step=1)
    read = read_state(run)
    assert read is not None
    assert read.step == 1


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"attempt": "one"}', b"\xff\xfe"])
def test_a_state_that_cannot_be_read_is_unknown(tmp_path: Path, content: bytes | None) -> None:
    run = RunDir(tmp_path)
    if content is not None:
        run.state_json.write_bytes(content)
    assert read_state(run) is None
