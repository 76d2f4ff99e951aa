"""Asking and ending a job on Slurm, by a controller in memory and a clock that tests own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcflow.errors import ClusterError, UserError
from hpcflow.launch.handle import JobHandle
from hpcflow.launch.slurm_job import AFTER_CANCEL_S
from hpcflow.launch.submit import check_resumable
from hpcflow.observe.exit_report import ExitReport
from hpcflow.observe.job import read_cancelled
from hpcflow.observe.processes import ProcessMark
from hpcflow.slurm.commands import CommandResult
from tests.support.clock import ManualClock
from tests.support.fake_controller import EMPTY, FORGOTTEN, SILENT, FakeController
from tests.support.run_folder import RunMaker

INT = "scancel --batch --signal=INT 7"
DEQUEUE = "scancel --state=PENDING 7"
CANCEL = "scancel 7"
START = 1_800_000_000.0


@dataclass
class Scene:
    """A job, and what answers for it."""

    maker: RunMaker
    controller: FakeController = field(default_factory=FakeController)
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))

    def handle(self) -> JobHandle:
        return JobHandle(self.maker.run, self.clock, self.controller.client)

    def runs(self) -> None:
        self.controller.job("RUNNING", nodes="node1", start=START - 600)
        self.maker.alive = ProcessMark(1, START - 599, "node1")
        self.maker.started()
        self.maker.driving()

    def ends(self, state: str = "FAILED", cause: str = "stopped") -> None:
        """The supervisor publishes its report, and the job is over a second later."""
        report = ExitReport(
            attempt=1,
            outcome="stopped",
            cause=cause,
            role="driver",
            rank=0,
            host="node1",
            message=cause,
            time=self.clock.now(),
        )
        self.maker.ended(report)
        self.clock.at(1, lambda: self.controller.job(state, nodes="node1", start=START - 600))

    def on(self, command: str, *actions: Callable[[], object]) -> None:
        """The n-th time that this command comes, the n-th action happens."""
        left = list(actions)

        def react(line: str) -> CommandResult | None:
            if line == command and left:
                left.pop(0)()
            return None

        self.controller.on_command = react


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(RunMaker(tmp_path / "run").submitted_to_slurm(time=START - 1000))


def test_a_running_job_is_asked_once_and_waited_for(scene: Scene) -> None:
    scene.runs()
    scene.on(INT, lambda: scene.clock.at(5, scene.ends))
    ending = scene.handle().cancel(60)
    assert (ending.how, ending.status.state) == ("asked", "stopped")
    assert scene.controller.commands == [INT]
    assert scene.clock.now() - START < 10


def test_a_second_cancel_leaves_the_first_its_checkpoint(scene: Scene) -> None:
    scene.runs()
    scene.handle().ask_to_stop()
    scene.clock.at(20, scene.ends)
    assert scene.handle().cancel(60).how == "asked"
    assert scene.controller.commands == [INT]


def test_a_job_that_does_not_stop_is_asked_again_which_ends_it_at_once(scene: Scene) -> None:
    scene.runs()
    scene.on(INT, lambda: None, lambda: scene.clock.at(2, lambda: scene.ends(cause="aborted")))
    ending = scene.handle().cancel(30)
    assert (ending.how, ending.status.exit and ending.status.exit.cause) == ("at once", "aborted")
    assert scene.controller.commands == [INT, INT]


def test_to_end_at_once_a_job_that_was_never_asked_takes_two_requests(scene: Scene) -> None:
    scene.runs()
    scene.on(INT, lambda: None, lambda: scene.clock.at(1, scene.ends))
    assert scene.handle().end_at_once().how == "at once"
    assert scene.controller.commands == [INT, INT]


def test_a_deaf_job_is_killed_by_slurm(scene: Scene) -> None:
    scene.runs()

    def killed() -> None:
        scene.controller.job("COMPLETING", nodes="node1", start=START - 600)
        scene.clock.at(32, lambda: scene.controller.job("CANCELLED", nodes="node1", start=START - 600))

    scene.on(CANCEL, killed)
    ending = scene.handle().cancel(10)
    assert ending.how == "killed"
    assert scene.controller.commands == [INT, INT, CANCEL]


def test_a_job_that_slurm_cannot_end_is_an_error_that_names_it(scene: Scene) -> None:
    scene.runs()
    scene.on(CANCEL, lambda: scene.controller.job("COMPLETING", nodes="node1", start=START - 600))
    with pytest.raises(ClusterError, match="job 7 is cancelled, but Slurm has not ended it") as caught:
        scene.handle().cancel(10)
    assert "sinfo -R" in caught.value.hint
    assert scene.clock.now() - START < 10 + 10 + AFTER_CANCEL_S + 5


def test_a_job_in_the_queue_is_cancelled_and_that_is_kept(scene: Scene) -> None:
    scene.controller.job("PENDING", "Priority")
    scene.on(DEQUEUE, lambda: scene.controller.job("CANCELLED", start=START))
    ending = scene.handle().cancel(60)
    assert (ending.how, ending.status.state) == ("asked", "stopped")
    assert ending.status.reason == "cancelled before it started"
    assert scene.controller.commands == [DEQUEUE]
    scene.controller.answer = FORGOTTEN
    scene.clock.wait(3600)
    assert scene.handle().status().reason == "cancelled before it started"


def test_a_job_that_starts_while_it_is_cancelled_is_asked_instead(scene: Scene) -> None:
    scene.controller.job("PENDING", "Priority")

    def react(line: str) -> None:
        if line == DEQUEUE:
            scene.runs()
        if line == INT:
            scene.clock.at(3, scene.ends)

    scene.controller.on_command = react
    assert scene.handle().cancel(60).how == "asked"
    assert scene.controller.commands == [DEQUEUE, INT]
    assert read_cancelled(scene.maker.run) is None


def test_a_job_that_has_just_got_its_nodes_is_cancelled(scene: Scene) -> None:
    scene.controller.job("CONFIGURING", nodes="node1", start=START)
    scene.on(CANCEL, lambda: scene.controller.job("CANCELLED", nodes="node1", start=START))
    ending = scene.handle().cancel(60)
    assert (ending.status.state, ending.status.reason) == ("stopped", "cancelled before it started")


def test_a_job_that_slurm_requeues_while_it_stops_is_taken_from_the_queue(scene: Scene) -> None:
    scene.runs()

    def react(line: str) -> None:
        if line == INT:
            scene.clock.at(2, lambda: scene.controller.job("PENDING", "BeginTime"))
        if line == DEQUEUE:
            scene.controller.job("CANCELLED", start=START)

    scene.controller.on_command = react
    ending = scene.handle().cancel(60)
    assert scene.controller.commands == [INT, DEQUEUE]
    assert ending.status.state == "stopped"
    assert "attempt 1 left no exit report" in ending.status.reason


def test_a_suspended_job_is_not_signalled_but_cancelled_when_the_time_is_over(scene: Scene) -> None:
    scene.runs()
    scene.controller.job("SUSPENDED", nodes="node1", start=START - 600)
    scene.on(CANCEL, lambda: scene.controller.job("CANCELLED", nodes="node1", start=START - 600))
    assert scene.handle().cancel(60).how == "killed"
    assert scene.controller.commands == [CANCEL]
    assert scene.clock.now() >= START + 60


def test_a_suspended_job_that_goes_on_in_time_is_asked(scene: Scene) -> None:
    scene.runs()
    scene.controller.job("SUSPENDED", nodes="node1", start=START - 600)
    scene.clock.at(30, lambda: scene.controller.job("RUNNING", nodes="node1", start=START - 600))
    scene.on(INT, lambda: scene.clock.at(2, scene.ends))
    assert scene.handle().cancel(60).how == "asked"
    assert scene.controller.commands == [INT]


def test_a_supervisor_that_has_not_begun_is_asked_when_it_has(scene: Scene) -> None:
    scene.controller.job("RUNNING", nodes="node1", start=START - 600)
    scene.clock.at(4, scene.runs)
    scene.on(INT, lambda: scene.clock.at(2, scene.ends))
    assert scene.handle().cancel(60).how == "asked"
    assert scene.controller.commands == [INT]


def test_who_cannot_hear_yet_or_leaves_already_is_not_signalled(scene: Scene) -> None:
    scene.runs()
    attempt = scene.maker.run.attempt(1)
    mark = attempt.supervisor_json.read_bytes()
    attempt.supervisor_json.unlink()
    assert scene.handle().ask_to_stop()
    attempt.supervisor_json.write_bytes(mark)
    scene.ends()
    assert scene.handle().status().state == "ending"
    assert scene.handle().ask_to_stop()
    assert scene.controller.commands == []


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", ""])
def test_cancelling_a_job_that_is_over_is_no_error_and_does_nothing(scene: Scene, state: str) -> None:
    scene.runs()
    scene.ends()
    scene.clock.wait(100)
    if state:
        scene.controller.job(state, nodes="node1", start=START - 600)
    else:
        scene.controller.answer = FORGOTTEN
    ending = scene.handle().cancel(60)
    assert (ending.how, ending.status.state) == ("over already", "stopped")
    assert scene.controller.commands == []


def test_a_job_that_ends_while_it_is_asked_is_no_error(scene: Scene) -> None:
    scene.runs()

    def late(line: str) -> CommandResult:
        scene.ends()
        return CommandResult(1, "", "scancel: error: Kill job error on job id 7: Invalid job id specified\n")

    scene.controller.on_command = late
    assert scene.handle().cancel(60).how == "asked"


@pytest.mark.parametrize("answer", [SILENT, EMPTY])
def test_without_an_answer_nothing_is_done(scene: Scene, answer: CommandResult) -> None:
    scene.runs()
    scene.controller.answer = answer
    with pytest.raises(ClusterError, match="Slurm") as caught:
        scene.handle().cancel(60)
    assert caught.value.exit_code == 4
    assert "nothing was done" in caught.value.hint
    assert scene.controller.commands == []


@pytest.mark.parametrize("answer", [SILENT, EMPTY, None])
def test_a_run_whose_job_may_wait_to_start_again_is_not_resumed(
    scene: Scene, answer: CommandResult | None
) -> None:
    """A second job would train beside the first, on the same checkpoints."""
    scene.runs()
    scene.ends()
    scene.maker.run.plan_json.write_text("{}")
    if answer is None:
        scene.controller.job("PENDING", "BeginTime")
    else:
        scene.controller.answer = answer
    with pytest.raises(UserError):
        check_resumable(scene.maker.run, scene.handle().status())
    scene.controller.answer = FORGOTTEN
    check_resumable(scene.maker.run, scene.handle().status())


def test_a_request_that_slurm_refuses_can_be_made_again(scene: Scene) -> None:
    scene.runs()
    refusal = CommandResult(1, "", "scancel: error: Access/permission denied\n")
    scene.controller.on_command = lambda line: refusal
    with pytest.raises(ClusterError, match="permission denied"):
        scene.handle().ask_to_stop()
    scene.on(INT, lambda: scene.clock.at(1, scene.ends))
    assert scene.handle().cancel(60).how == "asked"


def test_waiting_for_a_long_save_costs_few_questions(scene: Scene) -> None:
    scene.runs()
    scene.on(INT, lambda: scene.clock.at(200, scene.ends))
    assert scene.handle().cancel(300).how == "asked"
    assert scene.controller.questions <= 1 + 5 + 20 + 5


def test_a_resumed_run_is_another_job(scene: Scene) -> None:
    handle = scene.handle()
    scene.controller.job("PENDING", "Priority")
    assert handle.ask_to_stop()
    scene.maker.submitted_to_slurm(job_id="8", time=START)
    scene.controller.commands.clear()
    handle.ask_to_stop()
    assert scene.controller.commands == ["scancel --state=PENDING 8"]
