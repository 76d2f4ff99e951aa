"""Updates that a real vLLM must refuse, and links that break: an error, never a hang.

Breaking links are tested between two processes without vLLM.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcflow.weights.base import WeightTransferError
from hpcflow.weights.gloo import GlooReceiver
from tests.support.distributed import ADDRESS, Spot, run_distributed
from tests.support.weight_updates import push_update, tensor_sender

pytestmark = pytest.mark.dist
CASES = ("unknown name", "missing parameter")


def _untied_model(seed: int) -> Any:
    from tests.support.tiny_model import tiny_model

    return tiny_model(tied=False, seed=seed)


def _refuse(spot: Spot, folder: str) -> dict[str, Any]:
    """One good update, then the bad one of this rank's case."""
    from hpcflow.roles.rollout_engine import RolloutEngine, SampleRequest
    from tests.support.rollouts import settings

    engine = RolloutEngine(replace(settings(Path(folder)), random_weights=spot.rank > 0))
    model = _untied_model(seed=1)
    request = SampleRequest([5, 6, 7], max_new_tokens=8, temperature=1.0, seed=1)
    good = {name: tensor.detach() for name, tensor in model.named_parameters()}
    push_update(engine, good, version=1)
    [sample] = engine.generate([request])
    found: dict[str, Any] = {"difference": _difference(model, sample)}
    try:
        push_update(engine, _spoil(good, CASES[spot.rank]), version=2)
    except WeightTransferError as error:
        found["refusal"] = str(error)
    try:
        engine.generate([request])
    except WeightTransferError as error:
        found["generate"] = str(error)
    try:
        engine.receive_weights(3)
    except WeightTransferError as error:
        found["receive"] = str(error)
    engine.close()
    return found


def _spoil(good: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    name = "model.layers.1.self_attn.v_proj.weight"
    rest = {key: tensor for key, tensor in good.items() if key != name}
    if case == "unknown name":
        return {**rest, name.replace("v_proj", "w_proj"): good[name]}
    return rest


def _difference(model: Any, sample: Any) -> float:
    tokens = torch.tensor([[5, 6, 7, *sample.token_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, 2:-1], -1)
    ours = logprobs.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
    return float((ours - torch.tensor(sample.logprobs)).abs().max())


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case's process found; the model's embeddings are not tied."""
    from tests.support.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("model"), tied=False)
    found = run_distributed(_refuse, len(CASES), arguments=[str(folder)], timeout_s=200)
    return dict(zip(CASES, found, strict=True))


def test_untied_and_dummy_weights_are_replaced_whole(refusals: dict[str, Any]) -> None:
    assert max(found["difference"] for found in refusals.values()) < 1e-4


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown name", "model.layers.1.self_attn.w_proj.weight"),
        ("missing parameter", "lacks weights of 1 layers: model.layers.1.self_attn.qkv_proj"),
    ],
)
def test_a_bad_update_is_refused_by_name(refusals: dict[str, Any], case: str, words: str) -> None:
    assert words in refusals[case]["refusal"]


@pytest.mark.parametrize("case", CASES)
def test_after_a_refusal_nothing_is_generated_or_received(refusals: dict[str, Any], case: str) -> None:
    assert "version 2 did not arrive whole" in refusals[case]["generate"]
    assert "version 2 did not arrive whole" in refusals[case]["receive"]


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


def test_a_receiver_that_leaves_fails_thetensor_sender(endings: Any) -> None:
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
