"""What `status` says of a run on Slurm: every state of the job, with and without files of an attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from hpcflow.observe.exit_report import ExitReport, Outcome
from hpcflow.observe.job import JobRecord, write_cancelled
from hpcflow.observe.processes import ProcessMark
from hpcflow.observe.slurm_ask import News, PatientAsk, ask_client
from hpcflow.observe.slurm_look import SlurmLook
from hpcflow.observe.status import RunStatus, read_status
from hpcflow.slurm.commands import CommandResult
from hpcflow.slurm.state import DOCUMENTED
from tests.support.clock import ManualClock
from tests.support.fake_controller import EMPTY, FORGOTTEN, LATE, SILENT, FakeController, a_line
from tests.support.plans import a_plan
from tests.support.run_folder import WEIRD_NAME, RunMaker

NOW = 1_800_000_000.0
# The job of most tests began so long ago.
BEGAN = NOW - 3600.0


@dataclass
class Scene:
    """A run on Slurm, submitted two hours ago."""

    maker: RunMaker
    controller: FakeController = field(default_factory=FakeController)

    def look(self) -> RunStatus:
        def ask(job: JobRecord, news: News) -> SlurmLook:
            return ask_client(self.controller.client(), job.job_id, NOW)

        return read_status(self.maker.run, clock=lambda: NOW, ask=ask)

    def attempt(self, number: int = 1, *, age_s: float = 5.0, began: float = BEGAN + 2) -> None:
        """An attempt whose driver works, with this age of its last sign of life."""
        self.maker.alive = ProcessMark(1, began, "node1")
        self.maker.started(number)
        self.maker.driving(attempt=number, step=12)
        self.maker.aged(age_s, now=NOW)

    def report(self, outcome: Outcome, cause: str = "", *, attempt: int = 1, age_s: float = 5.0) -> None:
        report = ExitReport(
            attempt=attempt,
            outcome=outcome,
            cause=cause or outcome,
            role="actor",
            rank=1,
            host="node2",
            message="what happened",
            time=NOW - age_s,
        )
        self.maker.ended(report, attempt=attempt)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(RunMaker(tmp_path / WEIRD_NAME).submitted_to_slurm(time=NOW - 7200))


def nothing(scene: Scene) -> None:
    """The supervisor has not begun."""


def works(scene: Scene) -> None:
    scene.attempt()


def gone(scene: Scene) -> None:
    scene.attempt(age_s=600)


def failed(scene: Scene) -> None:
    scene.attempt(age_s=600)
    scene.report("failed", "killed")


def stopped(scene: Scene) -> None:
    scene.attempt(age_s=600)
    scene.report("stopped")


def done(scene: Scene) -> None:
    scene.attempt(age_s=600)
    scene.report("done")


FILES: dict[str, Callable[[Scene], None]] = {
    f.__name__: f for f in (nothing, works, gone, failed, stopped, done)
}
WAITS = {name: "queued" for name in ("nothing", "works", "gone", "failed", "stopped")}
RUNS = {"nothing": "starting", "works": "running", "gone": "running", "failed": "ending", "stopped": "ending"}
ENDS = {name: "ending" for name in ("nothing", "works", "gone", "failed", "stopped")}
# A report may be on its way for a while after the last sign of life.
OVER = {"nothing": "lost", "works": "ending", "gone": "lost", "failed": "failed", "stopped": "stopped"}
STRANGE = {name: "unknown" for name in ("nothing", "works", "gone", "failed", "stopped")}

# By the state as squeue writes it; `done` is done, whatever Slurm says.
EXPECTED: dict[str, dict[str, str]] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING"), WAITS),
    **dict.fromkeys(("RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED", "STOPPED"), WAITS),
    **dict.fromkeys(("RUNNING", "RESIZING", "SIGNALING"), RUNS),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), ENDS),
    **dict.fromkeys(("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"), OVER),
    **dict.fromkeys(("OUT_OF_MEMORY", "REVOKED", "TIMEOUT", "PREEMPTED"), OVER),
    # Other spellings, and what no version of today writes.
    **dict.fromkeys(("PD", "RD", "SE", "RH", "S", "ST", "EXPEDITING", "POWER_UP_NODE"), WAITS),
    **dict.fromkeys(("R", "RS", "SI"), RUNS),
    **dict.fromkeys(("CG", "SO", "UPDATE_DB"), ENDS),
    **dict.fromkeys(("CANCELLED by 54321", "CANCELLED+", "OOM", "LAUNCH_FAILED", "RECONFIG_FAIL"), OVER),
    **dict.fromkeys(("FOO_NEW", "XY", "?", "running hot"), STRANGE),
}


def test_the_table_has_every_documented_state() -> None:
    assert set(DOCUMENTED) <= set(EXPECTED)
    assert len(DOCUMENTED) == 24


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("state", EXPECTED)
def test_every_state_of_the_job_with_every_state_of_the_files(scene: Scene, state: str, files: str) -> None:
    FILES[files](scene)
    scene.controller.job(state, nodes="node[1-2]", start=BEGAN)
    status = scene.look()
    assert status.state == ("done" if files == "done" else EXPECTED[state][files])
    assert status.over == (status.state in ("done", "stopped", "failed", "lost"))
    assert scene.controller.questions == (0 if files == "done" else 1)
    if status.state in ("lost", "unknown"):
        assert status.reason
    if status.state == "unknown":
        assert state in status.reason
    assert json.loads(msgspec.json.encode(status))["state"] == status.state


@pytest.mark.parametrize("answer", [EMPTY, SILENT, LATE, CommandResult(0, "garbage\n", "")])
@pytest.mark.parametrize(
    ("files", "state"),
    [
        ("nothing", "unknown"),
        ("works", "running"),
        ("gone", "unknown"),
        ("failed", "failed"),
        ("stopped", "stopped"),
        ("done", "done"),
    ],
)
def test_no_answer_is_no_proof_and_old_files_are_unknown(
    scene: Scene, answer: CommandResult, files: str, state: str
) -> None:
    FILES[files](scene)
    scene.controller.answer = answer
    status = scene.look()
    assert status.state == state
    if state == "unknown":
        assert "last seen 10 min ago" in status.reason or "never seen" in status.reason
    if files != "done":
        assert status.slurm is not None
        assert status.slurm.unanswered
        assert status.reason.startswith("Slurm")


def test_a_job_that_was_only_just_submitted_is_queued_without_an_answer(scene: Scene) -> None:
    scene.maker.submitted_to_slurm(time=NOW - 20)
    scene.controller.answer = EMPTY
    status = scene.look()
    assert (status.state, status.reason) == ("queued", "Slurm's answer was empty; submitted 20 s ago")


@pytest.mark.parametrize(
    ("files", "state"),
    [("nothing", "lost"), ("gone", "lost"), ("failed", "failed"), ("stopped", "stopped"), ("done", "done")],
)
def test_once_slurm_has_forgotten_the_job_its_report_decides(scene: Scene, files: str, state: str) -> None:
    FILES[files](scene)
    scene.controller.answer = FORGOTTEN
    assert scene.look().state == state


def test_a_job_that_slurm_does_not_know_but_that_writes_is_unknown(scene: Scene) -> None:
    """It may be another cluster that was asked."""
    scene.attempt(age_s=3)
    scene.controller.answer = FORGOTTEN
    status = scene.look()
    assert (status.state, status.reason) == (
        "unknown",
        "Slurm knows no such job, but it was last seen 3 s ago",
    )


def test_a_report_that_comes_late_over_a_shared_disk_is_waited_for(scene: Scene) -> None:
    scene.attempt(age_s=20)
    scene.controller.job("FAILED", "NonZeroExitCode", nodes="node1", start=BEGAN)
    status = scene.look()
    assert (status.state, status.active) == ("ending", True)
    assert "its exit report is not there yet" in status.reason
    scene.maker.aged(40, now=NOW)
    assert scene.look().state == "lost"
    assert "Slurm: FAILED" in scene.look().reason


def test_a_requeued_job_says_how_its_last_attempt_ended(scene: Scene) -> None:
    scene.attempt(age_s=60)
    scene.report("stopped", "preempted")
    scene.controller.job("PENDING", "BeginTime", start=NOW + 61)
    status = scene.look()
    assert status.state == "queued"
    assert status.reason.startswith("attempt 1 is stopped (preempted); its begin time has not come")
    assert status.slurm is not None
    assert status.slurm.start == NOW + 61
    assert status.exit is not None


def test_a_node_that_died_leaves_no_report_and_the_job_goes_on(scene: Scene) -> None:
    scene.attempt(age_s=100)
    scene.controller.job("PENDING", "Resources")
    assert scene.look().reason.startswith("attempt 1 left no exit report; ")


def test_a_requeued_job_that_runs_again_is_starting_until_its_supervisor_begins(scene: Scene) -> None:
    scene.attempt(age_s=400, began=NOW - 1000)
    scene.report("stopped", "preempted", age_s=390)
    scene.controller.job("RUNNING", nodes="node1", start=NOW - 3)
    status = scene.look()
    assert (status.state, status.phase) == ("starting", None)
    assert status.reason == "attempt 1 is stopped (preempted); the job has started again"
    scene.attempt(2, began=NOW - 1)
    assert (scene.look().state, scene.look().attempt) == ("running", 2)


def test_a_node_whose_clock_is_behind_does_not_hide_that_its_attempt_works(scene: Scene) -> None:
    scene.attempt(age_s=5, began=BEGAN - 280)
    scene.controller.job("RUNNING", nodes="node1", start=BEGAN)
    assert scene.look().state == "running"


def test_a_second_start_that_died_early_is_not_covered_by_the_first_report(scene: Scene) -> None:
    scene.attempt(age_s=400, began=NOW - 1000)
    scene.report("stopped", "preempted", age_s=390)
    scene.controller.job("FAILED", "NonZeroExitCode", nodes="node1", start=NOW - 30)
    status = scene.look()
    assert status.state == "lost"
    assert "started again and ended before its supervisor began" in status.reason


def test_a_preempted_job_may_come_back(scene: Scene) -> None:
    scene.attempt(age_s=5)
    scene.report("stopped", "preempted")
    scene.controller.job("PREEMPTED", nodes="node1", start=BEGAN)
    assert scene.look().state == "ending"
    scene.controller.job("PENDING", "BeginTime")
    assert scene.look().state == "queued"
    scene.controller.job("PREEMPTED", nodes="node1", start=BEGAN)
    scene.maker.aged(90, now=NOW)
    assert scene.look().state == "stopped"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waits until enough nodes, cores, memory or GPUs are free"),
        ("launch failed requeued held", "`scontrol release 7`"),
        ("JobHeldUser", "to do: `scontrol release 7`"),
        ("PartitionTimeLimit", "to do: lower slurm.time_minutes"),
        ("SomeNewReason", "waits for its nodes (SomeNewReason)"),
    ],
)
def test_why_a_job_waits_is_said_in_plain_words(scene: Scene, reason: str, words: str) -> None:
    scene.controller.job("PENDING", reason)
    status = scene.look()
    assert status.state == "queued"
    assert words in status.reason
    assert status.slurm is not None
    assert status.slurm.reason == reason


def test_a_held_state_without_a_known_reason_says_the_release_command(scene: Scene) -> None:
    scene.controller.job("REQUEUE_HOLD", "SomethingElse")
    assert scene.look().reason.endswith("to do: `scontrol release 7`")


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("report", [None, "stopped", "failed"])
def test_a_job_cancelled_in_the_queue_stays_cancelled(
    scene: Scene, remembered: bool, report: Outcome | None
) -> None:
    if report:
        scene.attempt(age_s=300)
        scene.report(report, age_s=300)
    write_cancelled(scene.maker.run, "7")
    scene.controller.job("CANCELLED", nodes="", start=NOW - 10)
    if not remembered:
        scene.controller.answer = FORGOTTEN
    status = scene.look()
    assert status.state == (report or "stopped")
    assert "cancelled" in status.reason
    assert scene.controller.questions == 0


def test_a_cancel_by_scancel_is_seen_while_slurm_remembers(scene: Scene) -> None:
    scene.controller.job("CANCELLED", start=NOW - 10)
    assert (scene.look().state, scene.look().reason) == ("stopped", "cancelled before it started")
    scene.attempt(age_s=300)
    assert scene.look().reason == "cancelled while it waited to start again; attempt 1 left no exit report"


def test_a_cancel_of_an_earlier_submission_says_nothing(scene: Scene) -> None:
    write_cancelled(scene.maker.run, "6")
    scene.controller.job("PENDING", "Priority")
    assert scene.look().state == "queued"


def test_a_resumed_run_waits_in_spite_of_the_reports_of_earlier_submissions(scene: Scene) -> None:
    scene.attempt()
    scene.report("done")
    scene.maker.submitted_to_slurm(attempt=2, job_id="7")
    scene.controller.job("PENDING", "Priority")
    status = scene.look()
    assert (status.state, status.exit, scene.controller.questions) == ("queued", None, 1)


def test_a_heterogeneous_job_waits_with_the_component_that_is_least_far(scene: Scene) -> None:
    a_plan().save(scene.maker.run.plan_json)
    scene.controller.lines(
        a_line("PENDING", "Resources", listed="7+1", raw="8", count=2, start=NOW + 60),
        a_line("PENDING", "None", listed="7+0", raw="7", start=NOW + 30),
    )
    status = scene.look()
    assert status.slurm is not None
    assert (status.state, status.slurm.reason, status.slurm.start) == ("queued", "Resources", NOW + 60)
    assert [part.job_id for part in status.slurm.components] == ["7", "8"]
    assert [(place.nodes, place.node_count) for place in status.places] == [("", 1)] * 5


def test_a_requeued_job_without_one_of_its_components_can_never_start(scene: Scene) -> None:
    scene.controller.lines(
        a_line("PENDING", "Resources", listed="7+0", raw="7"),
        a_line("CANCELLED", "None", listed="7+1", raw="8", nodes="node2"),
    )
    status = scene.look()
    assert status.state == "queued"
    assert "it can never start: its component 1 was cancelled" in status.reason
    assert "`scancel 7`" in status.reason


def test_steps_are_shown_with_the_nodes_that_were_granted(scene: Scene) -> None:
    a_plan(on_gpu=True).save(scene.maker.run.plan_json)
    scene.controller.job("RUNNING", nodes="gpu-007", start=BEGAN)
    assert [(place.name, place.nodes) for place in scene.look().places] == [
        ("actor+reference+reward", "gpu-007"),
        ("critic", "gpu-007"),
        ("rollout", "gpu-007"),
    ]


def test_steps_of_a_job_that_slurm_has_forgotten_are_shown_by_what_ranks_published(scene: Scene) -> None:
    a_plan(on_gpu=True).save(scene.maker.run.plan_json)
    scene.attempt()
    scene.report("failed")
    endpoints = {"critic": [{"rank": 0, "host": "gpu-001", "endpoint": "tcp://10.0.0.1:1"}]}
    scene.maker.run.attempt(1).endpoints_json.write_text(json.dumps(endpoints))
    scene.controller.answer = FORGOTTEN
    # All roles of this plan are on its one node.
    assert {place.nodes for place in scene.look().places} == {"gpu-001"}
    scene.maker.run.attempt(1).endpoints_json.write_text('{"critic": [{"rank"')
    assert {place.nodes for place in scene.look().places} == {""}


@pytest.mark.parametrize("nodelist", ["node[1-2]", "node[", "(null)"])
def test_a_node_list_that_does_not_fit_the_plan_places_nothing(scene: Scene, nodelist: str) -> None:
    a_plan(on_gpu=True).save(scene.maker.run.plan_json)
    scene.controller.job("RUNNING", nodes=nodelist, start=BEGAN)
    assert {place.nodes for place in scene.look().places} == {""}


def patient(scene: Scene, clock: ManualClock) -> Callable[[], RunStatus]:
    """One who looks again and again."""
    client = scene.controller.client()
    ask = PatientAsk(lambda job, news: ask_client(client, job.job_id, clock.now()), clock.now)
    return lambda: read_status(scene.maker.run, clock=clock.now, ask=ask)


def test_a_follower_asks_every_ten_seconds_however_often_it_looks(scene: Scene) -> None:
    clock = ManualClock(NOW)
    look = patient(scene, clock)
    scene.controller.job("PENDING", "Priority")
    for _ in range(1200):
        assert look().state == "queued"
        clock.wait(0.5)
    # After 0, 1, 3, 7 and 15 s, then every 10 s.
    assert scene.controller.questions == 5 + 58
    before = scene.controller.questions
    scene.controller.job("RUNNING", nodes="node1", start=clock.now())
    scene.attempt(began=clock.now())
    assert look().state == "running"
    assert scene.controller.questions == before + 1


def test_one_empty_answer_between_two_good_ones_changes_nothing(scene: Scene) -> None:
    clock = ManualClock(NOW)
    look = patient(scene, clock)
    scene.controller.job("PENDING", "Priority")
    states = [look().state]
    scene.controller.answer = EMPTY
    clock.wait(11)
    states.append(look().state)
    assert look().slurm is not None
    scene.controller.job("PENDING", "Priority")
    clock.wait(11)
    states.append(look().state)
    assert states == ["queued", "queued", "queued"]
    scene.controller.answer = SILENT
    for _ in range(12):
        clock.wait(11)
        last = look()
    assert last.state == "unknown"
    assert last.slurm is not None
    assert last.slurm.state == "PENDING"


def test_another_submission_begins_without_the_answers_about_the_first(scene: Scene) -> None:
    clock = ManualClock(NOW)
    look = patient(scene, clock)
    scene.controller.job("RUNNING", nodes="node1", start=BEGAN)
    assert look().state == "starting"
    scene.maker.submitted_to_slurm(job_id="9", time=NOW - 300)
    scene.controller.answer = SILENT
    assert look().state == "unknown"


def test_a_clock_that_is_put_back_does_not_end_the_questions(scene: Scene) -> None:
    clock = ManualClock(NOW)
    look = patient(scene, clock)
    scene.controller.job("PENDING", "Priority")
    look()
    clock.time -= 3600
    look()
    assert scene.controller.questions == 2
