import time
from collections.abc import Iterator

import msgspec
import pytest

from hpcflow.cli import screens
from hpcflow.cli.follow import ending_lines
from hpcflow.cli.render import plan_text
from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.slurm_look import ComponentLook, SlurmLook, StepPlace
from hpcflow.observe.status import RunStatus
from tests.support.golden import check_golden
from tests.support.plans import a_plan
from tests.support.run_folder import train_row

REPORT = ExitReport(
    attempt=1,
    outcome="failed",
    cause="killed",
    role="actor",
    rank=1,
    host="node7",
    message="actor rank 1 was ended by SIGKILL",
    hint="if nobody killed it, the kernel did for want of memory: see `dmesg`",
    signal=9,
    step=57,
    log="/runs/sums/attempt_1/logs/actor.1.log",
    tail=["loss 0.5", "Killed"],
    time=1e6,
)
RUNNING = RunStatus(
    name="sums",
    path="/runs/my sums",
    state="running",
    reason="",
    executor="local",
    job_id="4711",
    attempt=1,
    step=57,
    steps=200,
    phase="generate",
    age_s=2.0,
    checkpoint_step=50,
    heldout_before=0.25,
    heldout=0.5,
    reward=0.625,
    kl=0.00123,
    tokens_per_second=912.3,
    exit=None,
)
QUEUED = msgspec.structs.replace(
    RUNNING,
    state="queued",
    attempt=0,
    step=0,
    steps=None,
    phase=None,
    age_s=None,
    checkpoint_step=None,
    heldout_before=None,
    heldout=None,
    reward=None,
    kl=None,
    tokens_per_second=None,
)
LOST = msgspec.structs.replace(
    RUNNING,
    state="lost",
    phase=None,
    reason="the supervisor is gone without an exit report; last seen 4 min ago",
    kl=None,
)
FAILED = msgspec.structs.replace(RUNNING, state="failed", phase=None, exit=REPORT)
STOPPED = msgspec.structs.replace(
    RUNNING,
    state="stopped",
    phase=None,
    checkpoint_step=57,
    exit=msgspec.structs.replace(
        REPORT,
        outcome="stopped",
        cause="stopped",
        role="driver",
        rank=0,
        message="stopped",
        hint="",
        signal=None,
        exit_code=75,
        log="",
        tail=[],
    ),
)
DONE = msgspec.structs.replace(RUNNING, state="done", phase=None, step=200, heldout=0.875)
PLACES = (
    StepPlace("actor+reference", ("actor", "reference"), 2, ""),
    StepPlace("critic", ("critic",), 1, ""),
)
PENDING = SlurmLook(
    answer="listed",
    asked=1.8e9,
    phase="queued",
    state="PENDING",
    reason="Priority",
    meaning="jobs of a higher priority are before it",
    start=1.8e9 + 600,
    components=(
        ComponentLook(job_id="4711", state="PENDING", reason="None", nodes="", node_count=2),
        ComponentLook(job_id="4712", state="PENDING", reason="Priority", nodes="", node_count=1),
    ),
)
ON_NODES = SlurmLook(
    answer="silent",
    message="squeue failed",
    asked=1.8e9,
    phase="running",
    state="RUNNING",
    meaning="runs",
    components=(
        ComponentLook(job_id="4711", state="RUNNING", reason="None", nodes="gpu[001-002]", node_count=2),
    ),
)
SLURM_QUEUED = msgspec.structs.replace(
    QUEUED,
    executor="slurm",
    reason="attempt 1 is stopped (preempted); jobs of a higher priority are before it",
    attempt=1,
    exit=msgspec.structs.replace(REPORT, outcome="stopped", cause="preempted"),
    slurm=PENDING,
    places=PLACES,
)
SLURM_RUNNING = msgspec.structs.replace(
    RUNNING,
    executor="slurm",
    slurm=ON_NODES,
    places=(
        msgspec.structs.replace(PLACES[0], nodes="gpu[001-002]"),
        msgspec.structs.replace(PLACES[1], nodes="gpu002"),
    ),
)
SCREENS = {
    "slurm-queued": SLURM_QUEUED,
    "slurm-running": SLURM_RUNNING,
    "running": RUNNING,
    "queued": QUEUED,
    "lost": LOST,
    "failed": FAILED,
    "stopped": STOPPED,
    "done": DONE,
}


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("state", SCREENS)
def test_status_screen(state: str) -> None:
    check_golden(f"status/{state}.txt", screens.status_text(SCREENS[state]) + "\n")


@pytest.mark.parametrize("state", ["done", "stopped", "failed", "lost"])
def test_last_words(state: str) -> None:
    status = SCREENS[state]
    tail = status.exit.tail if status.exit else []
    check_golden(f"endings/{state}.txt", "\n".join(ending_lines(status, tail)) + "\n")


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_plan_tables(device: str) -> None:
    plan = a_plan(on_gpu=device == "gpu", name="sums [bold]x[/bold] :smile:")
    check_golden(f"plans/{device}.txt", plan_text(plan))


def test_one_line_per_step_shows_what_was_measured() -> None:
    line = screens.metrics_line(train_row(10, loss=-0.012345, kl=None), 200)
    assert line == "step 10/200  loss -0.01235  reward 0.25  KL -  grad norm 1.5"


def test_time_left_follows_the_last_steps() -> None:
    rows = [train_row(step) for step in range(1, 101)]
    assert screens.time_left(rows, 200) == 200.0
    assert screens.time_left(rows[:1], 200) is None
    for row in rows[-screens.RATE_ROWS :]:
        row["time"] = 2e6 + 10.0 * row["step"]
    assert screens.time_left(rows, 200) == 1000.0
    assert screens.bar_figures(RUNNING, rows).endswith("900 tokens/s  17 min left")
