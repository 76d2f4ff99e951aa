"""ControlClient against a ControlServer with the supervisor's desk behind it."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from hpcflow.errors import JobFault, RpcError, UserError
from hpcflow.job.desk import Desk
from hpcflow.job.verdict import Member
from hpcflow.rpc.control import (
    Answer,
    Beat,
    ControlClient,
    EndpointsWanted,
    FaultReport,
    Ready,
    Request,
    Signalled,
)
from hpcflow.rpc.control_server import ControlServer
from hpcflow.rpc.identity import ProcessIdentity

ACTORS = [Member("actor", 0), Member("actor", 1)]
ROLES = [*ACTORS, Member("reward", 0)]


@dataclass
class Control:
    """A served desk, and what it has received."""

    endpoint: str
    desk: Desk
    received: list[Request]

    def client(self, role: str, rank: int) -> ControlClient:
        return ControlClient(self.identity(role, rank))

    def identity(self, role: str, rank: int) -> ProcessIdentity:
        return ProcessIdentity(
            run_dir=Path("/runs/a b"),
            attempt=2,
            control=self.endpoint,
            token="of this run",
            role=role,
            rank=rank,
            local_rank=rank,
            world_size=2,
            address="127.0.0.1",
            parent=None,
        )


@pytest.fixture
def control() -> Iterator[Control]:
    server = ControlServer("127.0.0.1", "of this run")
    desk = Desk(ROLES, server.answer)
    served = Control(server.endpoint, desk, [])
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.socket.poll(20)
            now = time.monotonic()
            for peer, request in server.receive():
                served.received.append(request)
                desk.receive(peer, request, now)
            desk.serve(now)

    thread = threading.Thread(target=serve)
    thread.start()
    yield served
    stop.set()
    thread.join(10)
    server.close()


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_ranks_wait_for_the_rendezvous_of_rank_0(control: Control) -> None:
    waiting, found = in_thread(lambda: control.client("actor", 1).await_rendezvous(10))
    control.client("critic", 0).offer_rendezvous("10.0.0.9", 999)
    control.client("actor", 0).offer_rendezvous("10.0.0.1", 1234)
    waiting.join(10)
    assert found == [("10.0.0.1", 1234)]


def test_a_rendezvous_that_is_not_offered_names_rank_0(control: Control) -> None:
    with pytest.raises(RpcError, match=r"no rendezvous after 0\.1 s; missing: actor rank 0"):
        control.client("actor", 1).await_rendezvous(0.1)


def test_the_driver_waits_until_all_ranks_are_ready(control: Control) -> None:
    driver = control.client("driver", 0)
    waiting, found = in_thread(lambda: driver.await_endpoints(10, contract_version=1))
    for member in reversed(ROLES):
        endpoint = f"tcp://127.0.0.1:{1000 + member.rank}"
        control.client(*member).ready(endpoint, 1)
    waiting.join(10)
    (endpoints,) = found
    assert isinstance(endpoints, dict)
    assert {role: [at.rank for at in found] for role, found in endpoints.items()} == {
        "actor": [0, 1],
        "reward": [0],
    }
    assert endpoints["actor"][1].endpoint == "tcp://127.0.0.1:1001"


def test_no_rank_loads_before_every_process_has_checked_its_inputs(control: Control) -> None:
    clients = [control.client(*rank) for rank in ROLES]
    waits = [in_thread(partial(client.await_inputs_checked, 10)) for client in clients]
    first, _ = waits[0]
    first.join(0.2)
    assert first.is_alive(), "the driver has not checked the data"
    control.client("driver", 0).inputs_checked()
    for waiting, _ in waits:
        waiting.join(10)
    assert [found for _, found in waits] == [[True]] * len(ROLES)


def test_an_input_check_that_does_not_end_is_named(control: Control) -> None:
    control.client("reward", 0).inputs_checked()
    with pytest.raises(RpcError, match=r"0\.1 s; missing: actor rank 1, driver rank 0") as caught:
        control.client("actor", 0).await_inputs_checked(0.1)
    assert caught.value.cause == "start_timeout"


def test_a_rank_that_is_to_leave_does_not_load(control: Control) -> None:
    waiting, found = in_thread(lambda: control.client("actor", 0).await_inputs_checked(10))
    control.desk.release(time.monotonic())
    waiting.join(10)
    assert found == [False]


def test_missing_ranks_are_named_after_the_time_out(control: Control) -> None:
    control.client("actor", 0).ready("tcp://127.0.0.1:1", 1)
    with pytest.raises(RpcError, match="missing: actor rank 1, reward rank 0") as caught:
        control.client("driver", 0).await_endpoints(0.1, contract_version=1)
    assert caught.value.cause == "start_timeout"


def test_another_contract_version_is_refused_by_name(control: Control) -> None:
    control.client("actor", 1).ready("tcp://127.0.0.1:1", 2)
    with pytest.raises(RpcError, match=r"actor rank 1 .* serves contract 2, .* speaks 1"):
        control.client("driver", 0).await_endpoints(5, contract_version=1)


def test_a_fault_report_names_whose_fault_it_is(control: Control) -> None:
    client = control.client("driver", 0)
    client.fault("reward_faults", "too many", "look at the function")
    client.report(RpcError("no answer", cause="rpc_timeout", role="actor", rank=1))
    client.report(ValueError("seven"))
    reports = [item for item in control.received if isinstance(item, FaultReport)]
    assert [(r.at_role, r.at_rank, r.cause) for r in reports] == [
        ("driver", 0, "reward_faults"),
        ("actor", 1, "rpc_timeout"),
        ("driver", 0, "role_error"),
    ]
    assert reports[2].message == "ValueError: seven"


def test_signals_are_reported(control: Control) -> None:
    control.client("rollout", 0).signalled(15)
    assert [item.signum for item in control.received if isinstance(item, Signalled)] == [15]


def test_the_order_to_leave_comes_at_once(control: Control) -> None:
    client = control.client("actor", 0)
    left = threading.Event()
    client.start_heartbeat(30.0, left.set)
    while not any(isinstance(item, Beat) for item in control.received):
        time.sleep(0.01)
    assert not client.released()
    control.desk.release(time.monotonic())
    assert left.wait(2)
    assert client.released()


def test_the_driver_waits_for_essential_commands_and_is_told_of_none() -> None:
    server, board = Member("server", 0), Member("board", 0)
    answers: list[Answer] = []
    desk = Desk(ROLES, lambda peer, answer: answers.append(answer), commands={server: True, board: False})
    for member in [*ROLES, board]:
        version = 0 if member == board else 7
        ready = Ready(*member, hold_s=0, host="h", endpoint=f"tcp://{member.role}", contract_version=version)
        desk.receive(b"", ready, 0)
    desk.receive(b"", EndpointsWanted("driver", 0, 5, contract_version=7), 0)
    desk.serve(1)
    assert [answer.endpoints for answer in answers] == [{}] * 4, "the driver's question is not answered"
    late = Ready(*server, hold_s=0, host="h", endpoint="http://server", contract_version=0)
    desk.receive(b"", late, 2)
    desk.serve(2)
    assert sorted(answers[-2].endpoints or answers[-1].endpoints) == ["actor", "reward"]
    assert sorted(desk.endpoints()) == ["actor", "board", "reward", "server"]
    desk.forget(board)
    assert sorted(desk.endpoints()) == ["actor", "reward", "server"]


def test_a_driver_that_waits_in_vain_is_told_which_command_is_missing() -> None:
    answers: list[Answer] = []
    waits = {Member("server", 0): True, Member("board", 0): False}
    desk = Desk([], lambda peer, answer: answers.append(answer), commands=waits)
    desk.receive(b"", EndpointsWanted("driver", 0, 5, contract_version=7), 0)
    desk.serve(5)
    assert [answer.missing for answer in answers] == [["server rank 0"]]


def test_beats_cost_one_message_per_interval(control: Control) -> None:
    left = threading.Event()
    control.client("actor", 0).start_heartbeat(0.2, left.set)
    time.sleep(1.0)
    control.desk.release(time.monotonic())
    assert left.wait(5)
    beats = [item for item in control.received if isinstance(item, Beat)]
    assert 2 <= len(beats) <= 6
    assert all(beat.resident_bytes > 10 * 2**20 for beat in beats)


def test_a_supervisor_that_is_gone_is_an_error_not_a_hang(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcflow.rpc.control.ANSWER_TIMEOUT_S", 0.1)
    nobody = replace(control.identity("actor", 0), control="tcp://127.0.0.1:9")
    with pytest.raises(RpcError) as caught:
        ControlClient(nobody).ready("tcp://127.0.0.1:1", 1)
    assert caught.value.cause == "supervisor_lost"
    ControlClient(nobody).report(JobFault("x", cause="data", role="actor"))  # does not raise


def test_a_supervisor_that_is_gone_for_long_releases_its_processes(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcflow.rpc.control.ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr("hpcflow.rpc.control.LOST_AFTER_S", 0.3)
    left = threading.Event()
    nobody = replace(control.identity("actor", 0), control="tcp://127.0.0.1:9")
    ControlClient(nobody).start_heartbeat(0.05, left.set)
    assert left.wait(5)


def test_a_wrong_token_is_not_heard(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcflow.rpc.control.ANSWER_TIMEOUT_S", 0.2)
    stranger = ControlClient(replace(control.identity("actor", 0), token="of another run"))
    with pytest.raises(RpcError):
        stranger.ready("tcp://127.0.0.1:1", 1)
    assert control.received == []


def test_an_identity_survives_the_environment(control: Control) -> None:
    for identity in (
        control.identity("actor", 1),
        replace(control.identity("driver", 0), parent=17),
    ):
        assert ProcessIdentity.from_environ(identity.to_environ()) == identity
        assert "of this run" not in repr(identity)


def test_a_program_started_by_hand_says_so(control: Control) -> None:
    environ = control.identity("actor", 0).to_environ()
    del environ["HPCFLOW_TOKEN"]
    with pytest.raises(UserError, match="HPCFLOW_TOKEN is not set"):
        ProcessIdentity.from_environ(environ)
