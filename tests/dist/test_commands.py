"""Commands as roles under the real supervisor: real programs, of which the other roles know nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcflow.errors import EXIT_FAILED, EXIT_OK
from hpcflow.observe.exit_report import ExitReport
from hpcflow.spec.load import load
from tests.support.fake_job import REPOSITORY, FakeJob, fake_job, lives, until
from tests.support.specs import tiny_spec

pytestmark = pytest.mark.dist
PROGRAM = REPOSITORY / "tests" / "support" / "fake_command.py"
HOSTILE = 'a,"b" \\ {port}\nc \u00e9'
WORDS = ["{rank}/{world_size} {local_rank}", "{address}:{port}", "{first_address}:{first_port}", "{{}}"]


def command(*behaviour: str, **keys: object) -> dict[str, object]:
    """A command of the spec that behaves so and has these keys."""
    return {"command": ["{python}", str(PROGRAM), "{run_folder}", *behaviour], **keys}


@contextmanager
def a_job(folder: Path, commands: Mapping[str, object], *, driver: str = "drives") -> Iterator[FakeJob]:
    spec = tiny_spec(folder / "spec", "health.heartbeat_s=1", f"commands={json.dumps(commands)}")
    with fake_job(folder / "a run", spec, {"driver.0": driver}) as job:
        yield job


def endpoints(job: FakeJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.run.attempts()[-1].endpoints_json.read_text())
    return found


def logged(job: FakeJob, role: str) -> str:
    return job.run.attempts()[-1].log(role, 0).read_text()


def kill(pid: int) -> None:
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)


@dataclass
class GoodRun:
    """What was seen of a run with many commands, which was done in spite of some of them."""

    job: FakeJob
    folder: Path
    before: dict[str, Any]
    driven_before: bool
    after: dict[str, Any]
    child_stayed: bool
    told: list[tuple[list[str], dict[str, str], str]]
    code: int
    report: ExitReport
    left: dict[str, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoodRun]:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "spec").mkdir()
    (folder / "spec" / "ready.0").write_text("of another run")
    dispensable: dict[str, object] = {"ready": {"port": True}, "essential": False}
    commands = {
        "by_port": command("obeys", ready={"port": True}),
        "by_http": command("warms_up", ready={"http": "/health?deep=1"}),
        "by_file": command("writes", str(folder / "spec" / "ready.0"), ready={"file": "ready.{rank}"}),
        "told": command("tells", *WORDS, ranks_per_node=2, environment={"HOSTILE": HOSTILE, "TZ": "UTC"}),
        "deaf": command("is_deaf", ready={"port": True}),
        "brief": command("listens", "5", **dispensable),
        "late": command("tells", ready_timeout_s=1.5, **dispensable),
        "unwatched": command("listens", **dispensable),
    }
    with ExitStack() as stack:
        job = stack.enter_context(a_job(folder, commands, driver="drives_until"))
        yield _watched(job, folder)


def _watched(job: FakeJob, folder: Path) -> GoodRun:
    pids = job.wait_for("unwatched.0.program", "late.0.program", "brief.0.program.child", "orphan")
    others = {"by_port", "by_file", "told", "deaf", "brief", "unwatched"}
    until(lambda: (job.run.path / "asked").exists() and others <= endpoints(job).keys())
    before, driven = endpoints(job), "driving" in job.pids()
    (job.run.path / "warm").touch()
    job.wait_until_driving()
    after = endpoints(job)
    # The program is to die with the process that watches it.
    kill(psutil.Process(pids["unwatched.0.program"]).ppid())
    (job.run.path / "leave").touch()
    until(lambda: not {"brief", "unwatched"} & endpoints(job).keys())
    until(lambda: not lives(pids["late.0.program"]))
    until(lambda: not lives(pids["unwatched.0.program"]), 10)
    stayed = lives(pids["brief.0.program.child"])
    told = [json.loads((job.run.path / f"told.told.{rank}").read_text()) for rank in (0, 1)]
    (job.run.path / "done").touch()
    code = job.end()
    return GoodRun(job, folder, before, driven, after, stayed, told, code, job.report(), job.left())


def test_a_run_is_done_and_takes_its_commands_along(run: GoodRun) -> None:
    assert (run.code, run.report.outcome, run.report.cause) == (EXIT_OK, "done", "done")
    assert run.left == {}


def test_the_driver_waits_for_essential_commands_and_for_no_others(run: GoodRun) -> None:
    assert "by_http" not in run.before
    assert not run.driven_before
    assert "by_http" in run.after
    assert "late" not in run.after


def test_each_probe_says_where_a_rank_is(run: GoodRun) -> None:
    (by_port,), (by_http,), (by_file,) = (run.after[name] for name in ("by_port", "by_http", "by_file"))
    assert by_port["endpoint"].startswith("tcp://127.0.0.1:")
    assert by_http["endpoint"].startswith("http://127.0.0.1:")
    assert by_file["endpoint"].startswith("tcp://127.0.0.1:")
    assert "ready: port " in logged(run.job, "by_port")
    assert f"ready: GET {by_http['endpoint']}/health?deep=1" in logged(run.job, "by_http")
    assert f"ready: file {run.folder}/spec/ready.0" in logged(run.job, "by_file")
    assert (run.job.run.path / "asked").read_text() == "/health?deep=1"


def test_ranks_are_told_who_they_are_and_where_rank_0_is(run: GoodRun) -> None:
    ports = [environ["HPCFLOW_PORT"] for _, environ, _ in run.told]
    assert ports[0] != ports[1]
    assert [f"tcp://127.0.0.1:{port}" for port in ports] == [at["endpoint"] for at in run.after["told"]]
    first = f"127.0.0.1:{ports[0]}"
    for rank, (arguments, environ, folder) in enumerate(run.told):
        assert arguments == [f"{rank}/2 {rank}", f"127.0.0.1:{ports[rank]}", first, "{}"]
        assert f"{environ['HPCFLOW_FIRST_ADDRESS']}:{environ['HPCFLOW_FIRST_PORT']}" == first
        assert f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}" == first
        assert (environ["RANK"], environ["LOCAL_RANK"], environ["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (environ["HOSTILE"], environ["TZ"], environ["CUDA_VISIBLE_DEVICES"]) == (HOSTILE, "UTC", "")
        assert folder == str(run.folder / "spec")


def test_a_run_goes_on_without_what_is_not_essential_and_says_so(run: GoodRun) -> None:
    brief, late, unwatched = run.report.gone
    assert brief == "brief rank 0 ended with exit code 5 without a fault report"
    assert late.startswith("command late rank 0 was not ready within 1.5 s: port ")
    assert unwatched == "unwatched rank 0 was ended by SIGKILL"
    for name in ("brief", "late", "unwatched"):
        assert f"the run goes on without {name} rank 0" in logged(run.job, "supervisor")


def test_what_a_command_leaves_behind_is_ended_at_once(run: GoodRun) -> None:
    assert not run.child_stayed


def test_a_released_command_is_asked_to_leave_and_killed_if_it_does_not(run: GoodRun) -> None:
    assert (run.job.run.path / "left").read_text() == str(int(signal.SIGTERM))
    assert {"orphan", "deaf.0.program", "deaf.0.program.child"} <= run.job.pids().keys()
    assert "kill all processes" not in logged(run.job, "supervisor"), "each rank ends its own in time"


def test_the_memory_of_a_command_counts(run: GoodRun) -> None:
    wrapper_alone = run.report.resident_bytes["late.0"]
    assert run.report.resident_bytes["deaf.0"] > 1 << 20
    assert wrapper_alone > 1 << 20


def test_a_command_that_is_never_ready_is_named_with_its_probe(tmp_path: Path) -> None:
    cold = command("warms_up", ready={"http": "/health"}, ready_timeout_s=1.5)
    with a_job(tmp_path, {"server": cold}) as job:
        assert job.end() == EXIT_FAILED
        report = job.report()
        assert (report.role, report.rank, report.cause) == ("server", 0, "start_timeout")
        assert report.message.startswith(
            "command server rank 0 was not ready within 1.5 s: GET http://127.0."
        )
        assert report.message.endswith("/health is answered with status 503")
        assert "commands.server.ready_timeout_s" in report.hint
        assert job.left() == {}


def test_an_essential_command_that_ends_well_ends_the_run_all_the_same(tmp_path: Path) -> None:
    with a_job(tmp_path, {"server": command("listens", "0", ready={"port": True})}) as job:
        job.wait_until_driving()
        (job.run.path / "leave").touch()
        assert job.end() == EXIT_FAILED
        report = job.report()
        assert (report.role, report.rank, report.cause, report.exit_code) == ("server", 0, "exited", 0)
        assert job.left() == {}


def test_nothing_of_a_command_stays_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with a_job(tmp_path, {"server": command("is_deaf", ready={"port": True})}) as job:
        job.wait_for("driving", "server.0.program", "server.0.program.child", "orphan")
        job.supervisor.kill()
        job.supervisor.wait(10)
        assert until(lambda: not job.left()) < 10


def test_a_program_that_does_not_exist_is_a_fault_of_the_spec(tmp_path: Path) -> None:
    with a_job(tmp_path, {"server": {"command": ["no-such-program", "{port}"]}}) as job:
        assert job.end() == EXIT_FAILED
        report = job.report()
        assert (report.role, report.cause) == ("server", "spec")
        assert report.message.endswith(": No such file or directory: no-such-program")
        assert report.hint.startswith("commands.server: ")


def test_the_shipped_command_judges_and_its_death_is_told(tmp_path: Path) -> None:
    config = REPOSITORY / "configs" / "ppo-with-command.yaml"
    with fake_job(tmp_path / "run", load(config), {}) as job:
        job.wait_until_driving()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HPCFLOW_RUN_DIR", str(job.run.path))
            patch.setenv("HPCFLOW_ATTEMPT", "1")
            reward = _shipped_reward()
            scores = [reward.score("17+25=", said, {"answer": "42"}) for said in ("42", " 42\n", "43")]
            reward._connection().close()
            assert scores == [1.0, 1.0, 0.0]
        everything = psutil.Process(job.supervisor.pid).children(recursive=True)
        (judge,) = [child for child in everything if "servers/judge.py" in child.cmdline()]
        kill(judge.pid)
        assert job.end() == EXIT_FAILED
        report = job.report()
        assert (report.role, report.cause, report.signal) == ("judge", "killed", signal.SIGKILL)


def _shipped_reward() -> Any:
    spec = importlib.util.spec_from_file_location("ask_judge", REPOSITORY / "configs/rewards/ask_judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
