"""Questions to the controller: what the commands of Slurm 22.05 answered, and what it means."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from hpcflow.errors import ClusterError
from hpcflow.slurm.client import Delivery, ListedJob, SlurmClient, Unlisted, leader_of
from hpcflow.slurm.commands import CommandResult
from tests.support.fake_commands import FakeCommands, said

RUNNING = "1|1|RUNNING|1|2026-12-01T12:54:29|node1|None\n"
HETJOB = (
    "37+1|38|RUNNING|2|2026-12-01T13:25:32|node[2-3]|None\n37+0|37|RUNNING|1|2026-12-01T13:25:32|node1|None\n"
)
NO_SUCH_JOB = said(stderr="slurm_load_jobs error: Invalid job id specified\n", code=1)
NO_CONTROLLER = said(
    stderr="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", code=1
)
TOO_LATE = said(stdout=RUNNING, stderr="", code=None)


def asked(job_id: str, answer: CommandResult) -> ListedJob | Unlisted | None:
    return SlurmClient(FakeCommands({"squeue": answer})).job(job_id)


def listed(job_id: str, stdout: str) -> ListedJob:
    found = asked(job_id, said(stdout))
    assert isinstance(found, ListedJob)
    return found


def test_a_running_job_is_listed_with_its_nodes() -> None:
    job = listed("1", RUNNING)
    assert (job.job_id, job.state.name, job.reason) == ("1", "RUNNING", "")
    (component,) = job.components
    assert (component.nodes, component.node_count, component.start) == (("node1",), 1, "2026-12-01T12:54:29")


def test_components_of_a_hetjob_are_in_their_order() -> None:
    job = listed("37", HETJOB)
    assert [component.job_id for component in job.components] == ["37", "38"]
    assert [component.nodes for component in job.components] == [("node1",), ("node2", "node3")]


def test_more_than_ten_components_are_in_their_order() -> None:
    lines = [f"5+{offset}|{5 + offset}|PENDING|1|N/A||Resources" for offset in range(12)]
    job = listed("5", "\n".join(sorted(lines)))
    assert [component.job_id for component in job.components] == [str(5 + offset) for offset in range(12)]


@pytest.mark.parametrize("nodes", [1, 512])
def test_a_question_is_one_call_whatever_the_size_of_the_job(nodes: int) -> None:
    lines = "".join(
        f"9+{offset}|{9 + offset}|RUNNING|{nodes}|N/A|n{offset}-[1-{nodes}]|None\n" for offset in range(8)
    )
    commands = FakeCommands({"squeue": said(lines)})
    assert isinstance(SlurmClient(commands).job("9"), ListedJob)
    assert len(commands.calls) == 1


def test_a_hetjob_is_asked_for_by_its_leader_and_in_words_that_old_versions_know() -> None:
    commands = FakeCommands({"squeue": said(HETJOB)})
    SlurmClient(commands).job("37+1")
    assert commands.calls == [
        ["squeue", "--noheader", "--jobs", "37", "--states", "all", "--format", "%i|%A|%T|%D|%S|%N|%r"]
    ]


def test_the_reason_is_that_of_the_component_that_waits() -> None:
    job = listed(
        "7", "7+0|7|RUNNING|1|2026-12-01T13:25:32|node1|None\n7+1|8|PENDING|9|N/A||PartitionConfig\n"
    )
    assert (job.state.name, job.reason) == ("PENDING", "PartitionConfig")
    assert (job.components[1].nodes, job.components[1].start) == ((), "")


def test_a_reason_may_hold_anything() -> None:
    job = listed("3", "3|3|PENDING|1|N/A||launch failed | requeued, held\n")
    assert job.reason == "launch failed | requeued, held"


def test_an_unknown_state_is_kept() -> None:
    job = listed("1", RUNNING.replace("RUNNING", "FOO_NEW"))
    assert job.state.name == "FOO_NEW"
    assert not job.state.known


def test_no_line_is_no_answer_about_the_job() -> None:
    assert asked("1", said("")) is None
    assert asked("1", said("\n")) is None
    assert asked("1", said("CLUSTER: one\n")) is None


def test_a_job_that_the_controller_forgot_is_told_apart() -> None:
    assert asked("1", NO_SUCH_JOB) == Unlisted("slurm_load_jobs error: Invalid job id specified")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (NO_CONTROLLER, "Unable to contact slurm controller"),
        (TOO_LATE, "no answer within 20 s"),
        (said(stderr="squeue: unrecognized option '--states'\n", code=1), "unrecognized option"),
        (said(code=1), "exit code 1"),
        (said("slurm_load_jobs\n"), "squeue wrote a line that cannot be read"),
    ],
)
def test_an_unclear_answer_is_a_fault_in_slurms_words(answer: CommandResult, words: str) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        asked("1", answer)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("text", ["123", "123+1", "123_4", "123.batch", "123_[2-5%2]", "123+1.0", " 123\n"])
def test_the_leader_addresses_a_job(text: str) -> None:
    assert leader_of(text) == "123"


@pytest.mark.parametrize("text", ["", "abc", "-1", "1 2", "12;rm"])
def test_what_is_no_id_never_reaches_a_command(text: str) -> None:
    commands = FakeCommands({})
    with pytest.raises(ClusterError, match="no id of a Slurm job"):
        SlurmClient(commands).cancel(text)
    assert commands.calls == []


# As squeue wrote it: blanks, quotes and bars in a path, arguments behind one, `--wrap` without any.
SCRIPTS = """\
4+1|/runs/a b|c/job's.sbatch
4+0|/runs/a b|c/job's.sbatch
6|(null)
10_[2-3%1]|/runs/plain.sh
11|/runs/plain.sh a1 b 2
12|/runs/plain.sh.old
3|/runs/plain.sh
"""


@pytest.mark.parametrize(
    ("path", "ids"),
    [
        ("/runs/a b|c/job's.sbatch", ["4"]),
        ("/runs/plain.sh", ["3", "10", "11"]),
        ("/runs/plain", []),
        ("(null)/x", []),
    ],
)
def test_a_job_is_found_by_its_script(path: str, ids: list[str]) -> None:
    commands = FakeCommands({"squeue": said(SCRIPTS)})
    assert SlurmClient(commands).find_by_script(Path(path)) == ids
    (call,) = commands.calls
    assert call[call.index("--states") + 1] == "all"
    assert "--user" in call


def test_a_job_cannot_be_searched_without_an_answer() -> None:
    with pytest.raises(ClusterError, match="Unable to contact"):
        SlurmClient(FakeCommands({"squeue": NO_CONTROLLER})).find_by_script("/runs/plain.sh")


OVER = (
    "scancel: error: Kill job error on job id 8: Job/step already completing or completed\n",
    "scancel: error: Kill job error on job id 8: Invalid job id specified\n",
)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (said(), Delivery.SENT),
        *((said(stderr=text, code=code), Delivery.OVER) for text in OVER for code in (0, 1)),
    ],
)
def test_cancelling_a_job_that_is_over_is_no_fault(answer: CommandResult, verdict: Delivery) -> None:
    commands = FakeCommands({"scancel": answer})
    assert SlurmClient(commands).cancel("8+1") is verdict
    assert commands.calls == [["scancel", "8"]]


@pytest.mark.parametrize(
    "answer",
    [
        NO_CONTROLLER,
        said(code=None),
        said(stderr=OVER[0], code=None),
        said(stderr="scancel: error: Kill job error on job id 8: Access/permission denied\n", code=1),
    ],
)
def test_a_cancellation_without_an_answer_is_a_fault(answer: CommandResult) -> None:
    with pytest.raises(ClusterError, match="scancel failed"):
        SlurmClient(FakeCommands({"scancel": answer})).cancel("8")


def test_a_signal_goes_to_the_batch_script() -> None:
    commands = FakeCommands({"squeue": said(HETJOB), "scancel": said()})
    assert SlurmClient(commands).signal_batch("37", signal.SIGINT) is Delivery.SENT
    assert commands.calls[-1] == ["scancel", "--batch", "--signal=INT", "37"]


def test_a_job_that_waits_is_not_signalled() -> None:
    commands = FakeCommands({"squeue": said("9|9|PENDING|1|N/A||JobHeldUser\n")})
    assert SlurmClient(commands).signal_batch("9", signal.SIGINT) is Delivery.NOT_STARTED
    assert [call[0] for call in commands.calls] == ["squeue"]


@pytest.mark.parametrize(
    ("squeue", "scancel", "verdict"),
    [
        (NO_SUCH_JOB, said(), Delivery.OVER),
        (said(RUNNING), said(stderr=OVER[1], code=1), Delivery.OVER),
        (said(""), said(), Delivery.SENT),
    ],
)
def test_signalling_a_job_that_is_over_is_no_fault(
    squeue: CommandResult, scancel: CommandResult, verdict: Delivery
) -> None:
    commands = FakeCommands({"squeue": squeue, "scancel": scancel})
    assert SlurmClient(commands).signal_batch("1", signal.SIGUSR2) is verdict


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("Slurmctld(primary) at vm is UP\n", True),
        ("Slurmctld(primary) at one is DOWN\nSlurmctld(backup) at two is UP\n", True),
        ("Slurmctld(primary/backup) at one/two are UP/DOWN\n", True),
        ("Slurmctld(primary/backup) at one/two are DOWN/UP\n", True),
        ("Slurmctld(primary) at vm is DOWN\n**** RESTORE SLURMCTLD DAEMON TO SERVICE ****\n", False),
        ("Slurmctld(primary/backup) at UP-one/two are DOWN/DOWN\n", False),
        ("", False),
    ],
)
def test_one_controller_that_is_up_is_enough(text: str, answers: bool) -> None:
    assert SlurmClient(FakeCommands({"scontrol": said(text, code=0)})).controller_answers() is answers


NODE = "NodeName=node1 Arch=x86_64  Gres=gpu:h200:4 NodeAddr=10.0.0.1 NodeHostName=vm Port=27101\n"


def test_the_address_of_a_node_is_the_controllers() -> None:
    commands = FakeCommands({"scontrol": said(NODE)})
    assert SlurmClient(commands).node_address("node1") == "10.0.0.1"


@pytest.mark.parametrize("answer", [said("Node nope not found\n", code=1), said(), said(code=None)])
def test_a_node_without_an_address_is_a_fault(answer: CommandResult) -> None:
    with pytest.raises(ClusterError, match="address of node nope"):
        SlurmClient(FakeCommands({"scontrol": answer})).node_address("nope")


def test_partitions_are_one_call() -> None:
    line = "main|main*|up|1-00:00:00|1-infinite|idle|16|1|8000|node[1-4]|h200|gpu:h200:4\n"
    commands = FakeCommands({"sinfo": said(line)})
    assert len(SlurmClient(commands).partitions()["main"].nodes) == 4
    assert len(commands.calls) == 1
    with pytest.raises(ClusterError, match="sinfo failed: slurm_load_jobs error: Unable to contact"):
        SlurmClient(FakeCommands({"sinfo": NO_CONTROLLER})).partitions()


def test_a_client_of_a_cluster_asks_that_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\necho "1|1|RUNNING|1|$SQUEUE_STATES|node1|$SLURM_CONF"\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", "/here")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    subprocess.run([squeue], check=True, capture_output=True, timeout=20)
    for conf, expected in (("/there", "/there"), (None, "")):
        job = SlurmClient.of_cluster(conf).job("1")
        assert isinstance(job, ListedJob)
        assert (job.reason, job.components[0].start) == (expected, "")
