"""Links between actor and rollout that break: an error, never a hang. Two processes without vLLM."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from hpcflow.weights.base import WeightTransferError
from hpcflow.weights.gloo import GlooReceiver
from tests.support.distributed import ADDRESS, Spot, run_distributed
from tests.support.weight_updates import tensor_sender

pytestmark = pytest.mark.dist


def _pair(spot: Spot, ending: str) -> tuple[str, float]:
    """Rank 0 sends, rank 1 receives; returns the error and the seconds until it came."""
    board = spot.board()
    tensors = {f"p{index}": torch.ones(20_000) for index in range(4)}
    if spot.rank == 0:
        return _sending_end(board, tensors, ending)
    return _receiving_end(board, ending)


def _sending_end(board: Any, tensors: dict[str, torch.Tensor], ending: str) -> tuple[str, float]:
    sender = tensor_sender(tensors, timeout_s=3)
    board.set("port", str(sender.listen(ADDRESS)))
    sender.open(world_size=2)
    board.get("receiver is there")
    if ending == "sender leaves":
        sender.close()
        return "", 0.0
    if ending == "sender stalls":
        board.get("receiver is done")
    start = time.monotonic()
    try:
        sender.send(8 if ending == "other version" else 7)
    except WeightTransferError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


def _receiving_end(board: Any, ending: str) -> tuple[str, float]:
    port = int(board.get("port"))
    receiver = GlooReceiver(ADDRESS, port, rank=1, world_size=2, timeout_s=3)
    board.set("receiver is there", "")
    if ending == "receiver leaves":
        receiver.close()
        return "", 0.0
    start = time.monotonic()
    try:
        receiver.receive(7, lambda spec, tensor: None)
    except WeightTransferError as error:
        return str(error), time.monotonic() - start
    finally:
        board.set("receiver is done", "")
    return "", time.monotonic() - start


@pytest.fixture(scope="module")
def endings() -> Any:
    """Runs one ending; both processes answer well before the time is up."""

    def run(ending: str) -> list[tuple[str, float]]:
        return run_distributed(_pair, 2, arguments=[ending], timeout_s=60)

    return run


def test_a_whole_update_arrives(endings: Any) -> None:
    assert [error for error, _ in endings("none")] == ["", ""]


def test_a_sender_that_leaves_fails_the_receiver_at_once(endings: Any) -> None:
    error, seconds = endings("sender leaves")[1]
    assert "broke off at the header of version 7" in error
    assert seconds < 2.5


def test_a_sender_that_stalls_times_the_receiver_out(endings: Any) -> None:
    error, seconds = endings("sender stalls")[1]
    assert "broke off at the header of version 7" in error
    assert 2.5 < seconds < 20


def test_a_receiver_that_leaves_fails_the_sender(endings: Any) -> None:
    error, _ = endings("receiver leaves")[0]
    assert "broke off" in error


def test_another_version_than_told_is_refused(endings: Any) -> None:
    error, _ = endings("other version")[1]
    assert "expected weights of version 7 in 4 buckets, got version 8" in error


def test_receivers_that_never_come_time_the_sender_out() -> None:
    sender = tensor_sender({"p": torch.ones(4)}, timeout_s=1)
    sender.listen(ADDRESS)
    with pytest.raises(WeightTransferError, match="rank 0 of 2 did not meet its peers"):
        sender.open(world_size=2)
