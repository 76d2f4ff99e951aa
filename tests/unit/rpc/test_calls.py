"""Server and group over real sockets, in threads of this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from hpcflow.errors import RpcError
from hpcflow.roles.contract import Empty
from hpcflow.rpc.group import Pending, WorkerGroup, wait
from hpcflow.rpc.identity import RankEndpoint
from hpcflow.rpc.server import Server
from hpcflow.rpc.wire import Call, RemoteMethod, Reply, Seal
from tests.support.echo_contract import Echo, EchoServer, Seconds, some_arrays

TOKEN = "of this run"


@dataclass
class Ranks:
    """Two served ranks, and the group that calls them."""

    servers: list[EchoServer]
    endpoints: list[RankEndpoint]
    group: WorkerGroup


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ExitStack() as stack:
        servers = [EchoServer(), EchoServer()]
        endpoints = []
        for rank, implementation in enumerate(servers):
            server = stack.enter_context(Server("127.0.0.1", TOKEN))
            endpoints.append(RankEndpoint(rank, f"node{rank}", server.endpoint))
            serve = threading.Thread(
                target=server.serve,
                args=(Echo, implementation),
                kwargs={"stop": implementation.stop},
            )
            serve.start()
            stack.callback(serve.join, 10)
            stack.callback(implementation.stop.set)
        group = WorkerGroup("actor", endpoints, token=TOKEN, timeout_s=10)
        stack.callback(group.close)
        yield Ranks(servers, endpoints, group)


def test_one_request_goes_to_all_ranks(ranks: Ranks) -> None:
    sent = some_arrays()
    results = ranks.group.call(Echo.echo, sent)
    assert len(results) == ranks.group.world_size == 2
    for result in results:
        assert np.array_equal(result.floats, sent.floats)


def test_each_rank_gets_its_own_request_in_order(ranks: Ranks) -> None:
    sent = [some_arrays(1, 2), some_arrays(4, 3)]
    results = ranks.group.call(Echo.echo, sent)
    assert [result.ints.shape for result in results] == [(1, 2), (4, 3)]


def test_big_arrays_come_back_equal(ranks: Ranks) -> None:
    sent = some_arrays(64, 20_000)
    result = ranks.group.call(Echo.add_one, sent)[0]
    assert np.array_equal(result.floats, sent.floats + 1)
    assert np.array_equal(result.ints, sent.ints)


def test_the_caller_may_reuse_its_arrays_at_once(ranks: Ranks) -> None:
    sent = some_arrays(64, 5_000)
    kept = sent.floats.copy()
    pending = ranks.group.start(Echo.echo, sent)
    sent.floats[...] = 0
    assert np.array_equal(pending.result()[0].floats, kept)


def test_seconds_are_those_of_the_slowest_rank(ranks: Ranks) -> None:
    pending = ranks.group.start(Echo.wait, [Seconds(0.0), Seconds(0.3)])
    pending.result()
    assert 0.3 <= pending.seconds < 5


def test_replies_carry_the_memory_of_each_rank(ranks: Ranks) -> None:
    ranks.group.call(Echo.echo, some_arrays())
    assert set(ranks.group.resident_bytes) == {0, 1}
    assert all(size > 10 * 2**20 for size in ranks.group.resident_bytes.values())


def test_calls_under_way_at_once_are_gathered_in_any_order(ranks: Ranks) -> None:
    first = ranks.group.start(Echo.wait, Seconds(0.1))
    second = ranks.group.start(Echo.echo, some_arrays())
    assert len(second.result()) == 2
    assert [result.seconds for result in first.result()] == [0.1, 0.1]


def test_a_group_without_ranks_answers_with_nothing() -> None:
    group = WorkerGroup("reference", [], token=TOKEN, timeout_s=1)
    assert group.call(Echo.echo, some_arrays()) == []
    group.close()


def test_an_error_names_role_rank_host_and_method(ranks: Ranks) -> None:
    with pytest.raises(RpcError, match="seven is not enough") as caught:
        ranks.group.call(Echo.fail, Empty())
    error = caught.value
    assert error.message.startswith(f"actor rank {error.rank} on node{error.rank}: fail failed")
    assert (error.role, error.cause) == ("actor", "role_error")


@pytest.mark.parametrize(("method", "cause"), [(Echo.find_fault, "data"), (Echo.run_out, "out_of_memory")])
def test_the_cause_of_a_fault_comes_through(
    ranks: Ranks, method: Callable[[Any, Empty], Empty], cause: str
) -> None:
    with pytest.raises(RpcError) as caught:
        ranks.group.call(method, Empty())
    assert caught.value.cause == cause


def test_ranks_serve_on_after_an_error(ranks: Ranks) -> None:
    with pytest.raises(RpcError):
        ranks.group.call(Echo.fail, Empty())
    assert len(ranks.group.call(Echo.echo, some_arrays())) == 2


def test_one_failing_rank_is_heard_while_another_is_busy(ranks: Ranks) -> None:
    busy = ranks.group.start(Echo.wait, [Seconds(1.0), Seconds(0.0)])
    failing = WorkerGroup(
        "rollout", [RankEndpoint(0, "node1", ranks.endpoints[1].endpoint)], token=TOKEN, timeout_s=5
    )
    started = time.monotonic()
    with pytest.raises(RpcError, match="rollout rank 0 on node1"):
        wait(busy, failing.start(Echo.fail, Empty()))
    assert time.monotonic() - started < 0.9
    failing.close()


def test_a_time_out_names_the_rank_that_is_missing(ranks: Ranks) -> None:
    with pytest.raises(RpcError) as caught:
        ranks.group.call(Echo.wait, [Seconds(0.0), Seconds(0.6)], timeout_s=0.2)
    error = caught.value
    assert (error.cause, error.role, error.rank) == ("rpc_timeout", "actor", 1)
    assert error.message == "actor rank 1 on node1: wait failed: no answer within 0.2 s"


def test_a_time_out_names_all_ranks_that_are_missing(ranks: Ranks) -> None:
    with pytest.raises(RpcError, match=r"rank 0 on node0.*; nor from rank 1 on node1"):
        ranks.group.call(Echo.wait, Seconds(0.6), timeout_s=0.2)


def test_the_time_out_of_a_rank_that_is_not_there() -> None:
    nobody = RankEndpoint(0, "node9", "tcp://127.0.0.1:9")
    group = WorkerGroup("reward", [nobody], token=TOKEN, timeout_s=0.2)
    with pytest.raises(RpcError, match="reward rank 0 on node9"):
        group.call(Echo.echo, some_arrays())
    group.close()


def test_a_late_reply_is_dropped_and_not_taken_for_another(ranks: Ranks) -> None:
    with pytest.raises(RpcError):
        ranks.group.call(Echo.wait, [Seconds(0.0), Seconds(0.5)], timeout_s=0.1)
    results = ranks.group.call(Echo.wait, [Seconds(0.0), Seconds(0.01)])
    assert [result.seconds for result in results] == [0.0, 0.01]


def test_a_wrong_token_is_refused(ranks: Ranks) -> None:
    stranger = WorkerGroup("actor", ranks.endpoints, token="of another run", timeout_s=0.3)
    with pytest.raises(RpcError) as caught:
        stranger.call(Echo.echo, some_arrays())
    stranger.close()
    assert caught.value.cause == "rpc_timeout"
    assert ranks.servers[0].calls == ranks.servers[1].calls == []
    assert len(ranks.group.call(Echo.echo, some_arrays())) == 2


def raw_call(endpoint: str, call: Call) -> Reply:
    seal = Seal(TOKEN)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send_multipart(seal.close(call))
        assert socket.poll(5000)
        opened = seal.open(socket.recv_multipart(copy=False))
    assert opened is not None
    return msgspec.msgpack.decode(opened[0], type=Reply)


@pytest.mark.parametrize("method", ["local", "__init__", "calls", "nothing"])
def test_only_remote_methods_can_be_called(ranks: Ranks, method: str) -> None:
    body = msgspec.Raw(msgspec.msgpack.encode(Empty()))
    reply = raw_call(ranks.endpoints[0].endpoint, Call(1, method, body))
    assert reply.fault is not None
    assert f"no remote method '{method}'" in reply.fault.message
    assert ranks.servers[0].calls == []


def test_a_request_of_the_wrong_type_never_reaches_the_role(ranks: Ranks) -> None:
    body = msgspec.Raw(msgspec.msgpack.encode({"seconds": "long"}))
    reply = raw_call(ranks.endpoints[0].endpoint, Call(1, "wait", body))
    assert reply.fault is not None
    assert reply.fault.type == "ValidationError"
    assert ranks.servers[0].calls == []


def test_a_reply_of_the_wrong_type_is_an_error_of_the_role(ranks: Ranks) -> None:
    with pytest.raises(RpcError, match="lie returned Empty"):
        ranks.group.call(Echo.lie, Empty())


def test_a_wrong_request_is_refused_before_it_is_sent(ranks: Ranks) -> None:
    with pytest.raises(TypeError, match="wait takes"):
        ranks.group.start(Echo.wait, Empty())  # type: ignore[arg-type]


def test_garbage_does_not_end_the_server(ranks: Ranks) -> None:
    endpoint = ranks.endpoints[0].endpoint
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.setsockopt(zmq.LINGER, 1000)
        for parts in ([b""], [b"x", b"y"], [bytes(32), b"\xff" * 9, b""]):
            socket.send_multipart(parts)
        socket.send_multipart(Seal(TOKEN).close(Empty()))  # sealed, but no call
        raw_call(endpoint, Call(1, "echo", msgspec.Raw(b"\xc0")))
    assert len(ranks.group.call(Echo.echo, some_arrays())) == 2


def test_a_reply_is_kept_for_a_call_whose_wrong_type_it_is(ranks: Ranks) -> None:
    method = RemoteMethod("echo", Seconds, Seconds)
    pending: Pending[Seconds] = Pending(ranks.group, method, 1.0)
    pending.take(ranks.endpoints[1], Reply(1, 0.0, 0, msgspec.Raw(b"\x80")), [])
    assert pending.error is not None
    assert "reply of the wrong type" in pending.error.message
