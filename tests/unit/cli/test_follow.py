from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from hpcflow.cli.follow import Follower
from hpcflow.cli.interrupts import Interrupts
from hpcflow.cli.views import JsonView, PlainView, make_view
from hpcflow.launch.handle import Ending, JobHandle
from hpcflow.observe.exit_report import ExitReport, Outcome
from hpcflow.observe.metrics import Row
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.status import RunStatus
from hpcflow.rundir import RunDir
from tests.support.clock import ManualClock
from tests.support.fake_controller import SILENT, FakeController
from tests.support.plans import a_plan
from tests.support.run_folder import RunMaker, train_row


@dataclass
class Recorded(JobHandle):
    """A handle whose requests are noted instead of sent."""

    requests: list[str] = field(default_factory=list)
    on_second: Callable[[], None] = lambda: None

    def ask_to_stop(self, signum: signal.Signals = signal.SIGTERM) -> bool:
        """Note it once."""
        if signum.name not in self.requests:
            self.requests.append(signum.name)
        return True

    def end_at_once(self) -> Ending:
        """Note it, and let the run end."""
        self.requests.append("end at once")
        self.on_second()
        return Ending("at once", self.status())


@dataclass
class Scene:
    """A run that is followed, and what the follower said."""

    maker: RunMaker
    clock: ManualClock
    handle: Recorded
    interrupts: Interrupts
    lines: list[str]

    def follow(self, *, attempt: int = 1, as_json: bool = False) -> int:
        write = self.lines.append
        view = JsonView(write) if as_json else PlainView(write)
        return Follower(self.handle, attempt, view, self.interrupts, self.clock).run()

    def end(self, outcome: Outcome, cause: str = "", *, attempt: int = 1) -> None:
        report = ExitReport(
            attempt=attempt,
            outcome=outcome,
            cause=cause or outcome,
            role="actor",
            rank=1,
            host="node7",
            message="what happened",
            tail=["last line"],
            time=1e6,
        )
        self.maker.ended(report, attempt=attempt)

    def press(self) -> None:
        self.interrupts.presses += 1


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    maker = RunMaker(tmp_path / "a run").submitted()
    a_plan().save(maker.run.plan_json)
    clock = ManualClock()
    return Scene(maker, clock, Recorded(RunDir(maker.path), clock), Interrupts(), [])


def test_a_run_is_followed_from_its_start_to_its_end(scene: Scene) -> None:
    maker, clock = scene.maker, scene.clock
    clock.at(1, lambda: endpoints(maker.started().endpoints_json, "actor", "critic", "reference"))
    clock.at(2, lambda: maker.driving(step=0))
    clock.at(3, lambda: maker.rows(heldout(0, 0.25), *[train_row(step) for step in range(1, 24)]))
    clock.at(4, lambda: maker.driving(step=23, steps=23, heldout_before=0.25, heldout=0.75))
    clock.at(5, lambda: maker.rows(heldout(23, 0.75)))
    clock.at(5, lambda: scene.end("done"))
    assert scene.follow() == 0
    assert scene.lines == [
        "waiting for the job to start",
        "waiting for reward.0, rollout.0",
        "step 0: held-out score 0.250",
        "step 10/200  loss 0.5  reward 0.25  KL 0.01  grad norm 1.5",
        "step 20/200  loss 0.5  reward 0.25  KL 0.01  grad norm 1.5",
        "step 23: held-out score 0.750",
        "\n".join(
            [
                "a run: done at step 23 of 23",
                "held-out score: 0.250 before, 0.750 after",
                f"run folder: {maker.path}",
            ]
        ),
    ]


def endpoints(path: Path, *roles: str) -> None:
    path.write_text(json.dumps({role: [{"rank": 0, "host": "h", "endpoint": "e"}] for role in roles}))


def heldout(step: int, score: float) -> dict[str, object]:
    return {"kind": "heldout", "attempt": 1, "step": step, "score": score}


def test_a_failed_run_shows_who_what_why_and_the_log(scene: Scene) -> None:
    scene.maker.started()
    scene.end("failed", "killed")
    assert scene.follow() == 3
    last = scene.lines[-1]
    for part in ("actor.1 on node7", "killed: what happened", "  | last line", "hpcflow resume '"):
        assert part in last


def test_the_first_ctrl_c_asks_for_a_checkpoint_and_waits(scene: Scene) -> None:
    scene.maker.started()
    scene.maker.driving()
    scene.clock.at(1, scene.press)
    scene.clock.at(5, lambda: scene.maker.checkpoint(4))
    scene.clock.at(5, lambda: scene.end("stopped"))
    assert scene.follow() == 130
    assert scene.handle.requests == ["SIGINT"]
    assert scene.lines[0] == "saving a checkpoint; press again to end at once"
    assert "checkpoint of step 4" in scene.lines[-1]
    assert "go on with:  hpcflow resume" in scene.lines[-1]
    assert scene.clock.now() >= 1_000_005


def test_the_second_ctrl_c_ends_at_once(scene: Scene) -> None:
    scene.maker.started()
    scene.handle.on_second = lambda: scene.end("stopped", "aborted")
    scene.clock.at(1, scene.press)
    scene.clock.at(2, scene.press)
    assert scene.follow() == 130
    assert scene.handle.requests == ["SIGINT", "end at once"]


def test_a_run_that_fails_while_stopping_has_failed(scene: Scene) -> None:
    scene.maker.started()
    scene.clock.at(1, scene.press)
    scene.clock.at(3, lambda: scene.end("failed", "stop_timeout"))
    assert scene.follow() == 3


def test_a_run_that_is_done_before_it_could_stop_is_done(scene: Scene) -> None:
    scene.maker.started()
    scene.clock.at(1, scene.press)
    scene.clock.at(3, lambda: scene.end("done"))
    assert scene.follow() == 0


def test_a_told_follower_leaves_and_the_run_goes_on(scene: Scene) -> None:
    scene.maker.started()
    scene.interrupts.leave = True
    assert scene.follow() == 130
    assert scene.handle.requests == []
    assert scene.lines[-1].startswith("the run goes on:  hpcflow status '")


def test_a_job_that_never_began_shows_what_the_submission_printed(tmp_path: Path, scene: Scene) -> None:
    from tests.support.run_folder import gone_process

    scene.maker.alive = gone_process()
    scene.maker.submitted()
    scene.maker.run.submitit.mkdir()
    (scene.maker.run.submitit / "4711_0_log.err").write_text("No module named hpcflow\n")
    assert scene.follow() == 3
    assert "lost, the job ended before its supervisor began" in scene.lines[-1]
    assert "  | No module named hpcflow" in scene.lines[-1]


def test_rows_of_earlier_attempts_are_not_shown_again(scene: Scene) -> None:
    scene.maker.started()
    scene.maker.driving(steps=10)
    scene.maker.rows(train_row(10), train_row(10, attempt=2, reward=0.5))
    scene.end("done")
    scene.follow(attempt=2)
    assert [line for line in scene.lines if line.startswith("step")] == [
        "step 10/10  loss 0.5  reward 0.5  KL 0.01  grad norm 1.5"
    ]


@pytest.fixture
def on_slurm(scene: Scene) -> FakeController:
    """The run is a job of a controller that is to be told what to answer."""
    controller = FakeController()
    scene.maker.submitted_to_slurm(time=scene.clock.now() - 1000)
    scene.maker.alive = ProcessMark(1, scene.clock.now() + 1, "node1")
    scene.handle.connect = controller.client
    return controller


def test_a_job_is_followed_through_the_queue_and_a_requeue(scene: Scene, on_slurm: FakeController) -> None:
    maker, clock, began = scene.maker, scene.clock, scene.clock.now()
    a_plan().save(maker.run.plan_json)
    on_slurm.job("PENDING", "Priority")
    clock.at(30, lambda: on_slurm.job("RUNNING", nodes="node1", start=began + 30))
    clock.at(31, maker.started)
    clock.at(32, maker.driving)
    clock.at(33, lambda: maker.rows(*[train_row(step) for step in range(1, 21)]))
    clock.at(50, lambda: scene.end("stopped", "preempted"))
    clock.at(51, lambda: on_slurm.job("PENDING", "BeginTime", start=began + 172))
    clock.at(172, lambda: on_slurm.job("RUNNING", nodes="node2", start=began + 172))
    clock.at(173, lambda: maker.started(2))
    clock.at(174, lambda: maker.driving(attempt=2, step=20, steps=30))
    clock.at(180, lambda: maker.rows(*[train_row(step, attempt=2) for step in range(20, 31)]))
    clock.at(190, lambda: scene.end("done", attempt=2))
    assert scene.follow() == 0
    told = [line for line in scene.lines if "\n" not in line]
    assert told[0] == "waiting for the job to start: jobs of a higher priority are before it"
    assert [line[:30] for line in told if line.startswith("step ")] == [
        "step 10/200  loss 0.5  reward ",
        "step 20/200  loss 0.5  reward ",
        "step 20/30  loss 0.5  reward 0",
        "step 30/30  loss 0.5  reward 0",
    ]
    assert any(line.startswith("waiting for the job to start again: its begin time") for line in told)
    # One in ten seconds, and some when the files had news.
    assert on_slurm.questions <= 190 / 10 + 1 + 5 * 3


def test_the_rate_is_that_of_the_attempt_that_runs(scene: Scene) -> None:
    shown: list[list[int]] = []

    class Recorder(PlainView):
        def progress(self, status: RunStatus, rows: list[Row], waiting: list[str]) -> None:
            shown.append([row["step"] for row in rows])

    scene.maker.started()
    scene.maker.rows(train_row(1), train_row(2))
    scene.clock.at(1, lambda: scene.maker.rows(train_row(2, attempt=2)))
    scene.clock.at(2, lambda: scene.end("done"))
    view = Recorder(scene.lines.append)
    assert Follower(scene.handle, 1, view, scene.interrupts, scene.clock).run() == 0
    assert (shown[0], shown[-1]) == ([1, 2], [2])


def test_the_end_of_a_failed_job_is_shown_soon(scene: Scene, on_slurm: FakeController) -> None:
    began = scene.clock.now()
    on_slurm.job("RUNNING", nodes="node1", start=began)
    scene.maker.started()
    scene.clock.at(100, lambda: scene.end("failed", "killed"))
    scene.clock.at(101, lambda: on_slurm.job("FAILED", nodes="node1", start=began))
    assert scene.follow() == 3
    assert scene.clock.now() - began < 104


def test_a_controller_that_falls_silent_does_not_end_the_follower(
    scene: Scene, on_slurm: FakeController
) -> None:
    began = scene.clock.now()
    on_slurm.job("RUNNING", nodes="node1", start=began)
    scene.maker.started()
    scene.clock.at(20, lambda: setattr(on_slurm, "answer", SILENT))
    scene.clock.at(600, lambda: scene.end("done"))
    assert scene.follow() == 0
    assert on_slurm.questions <= 65


def test_ctrl_c_takes_a_waiting_job_from_the_queue(tmp_path: Path, scene: Scene) -> None:
    controller, clock = FakeController(), scene.clock
    scene.maker.submitted_to_slurm(time=clock.now())
    controller.job("PENDING", "Priority")

    def react(line: str) -> None:
        controller.job("CANCELLED", start=clock.now())

    controller.on_command = react
    clock.at(3, scene.press)
    view = PlainView(scene.lines.append)
    handle = JobHandle(scene.maker.run, clock, controller.client)
    assert Follower(handle, 1, view, scene.interrupts, clock).run() == 130
    assert controller.commands == ["scancel --state=PENDING 7"]
    assert "cancelling the job, which waits in the queue" in scene.lines
    assert scene.lines[-1].startswith("a run: stopped, cancelled before it started")


def test_json_lines_carry_every_row_and_the_end(scene: Scene) -> None:
    scene.maker.started()
    scene.maker.driving()
    scene.maker.rows(train_row(1), train_row(2))
    scene.end("done")
    scene.follow(as_json=True)
    events = [json.loads(line) for line in scene.lines]
    assert [event["event"] for event in events] == ["row", "row", "end"]
    assert events[-1]["status"]["state"] == "done"
    assert msgspec.json.decode(scene.lines[0])["step"] == 1


def test_signals_are_counted_and_handlers_put_back() -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert (interrupts.presses, interrupts.leave) == (2, False)
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.leave
    after = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert before == after


def test_a_closed_standard_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert isinstance(make_view(as_json=False, write=print), PlainView)
