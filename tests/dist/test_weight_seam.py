"""Actor to rollout through the real seam: two ZeRO-3 ranks, one vLLM, gloo between them.

After each update the log-probabilities that vLLM returns are held against the trainer's. The prompt
is longer than a cache block and repeats, so that a prefix cached under older weights would show.

Then come updates that vLLM must refuse, each to an engine of its own in the same process.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.distributed import ADDRESS, Spot, run_distributed

pytestmark = pytest.mark.dist
ACTORS, VERSIONS, TEMPERATURES = 2, 3, (1.0, 0.6)
PROMPT = [2 + (7 * index) % 120 for index in range(200)]
TOLERANCE = 1e-4
MEGABYTE = 2**20
REFUSED = ("unknown name", "missing parameter")
SPOILT = "model.layers.1.self_attn.v_proj.weight"


def _walk(spot: Spot, folder: str, untied_folder: str) -> Any:
    if spot.rank < ACTORS:
        return _actor(spot)
    found = _rollout(spot, Path(folder))
    return found | {case: _refuse(case, Path(untied_folder)) for case in REFUSED}


def _actor(spot: Spot) -> dict[str, Any]:
    from hpcflow.roles.train_engine import TrainEngine
    from hpcflow.weights.gloo import GlooWeightSender
    from tests.support import training
    from tests.support.tiny_model import tiny_model

    board = spot.board()
    training.join_group(board, rank=spot.rank, world_size=ACTORS)
    engine = TrainEngine(tiny_model(), training.settings(3, learning_rate=0.02))
    sender = GlooWeightSender(
        source=engine, is_sender=spot.rank == 0, bucket_bytes=MEGABYTE // 20, timeout_s=60
    )
    if spot.rank == 0:
        board.set("weights_port", str(sender.listen(ADDRESS)))
        sender.open(world_size=2)
    rows = list(range(training.ROWS))[spot.rank :: ACTORS]
    found: dict[str, Any] = {"reports": [], "differences": [_difference(board, engine, 0)]}
    found["norms"] = []
    for version in range(1, VERSIONS + 1):
        losses = training.micro_losses(engine, rows=rows, microbatches=2, seed=version)
        found["norms"].append(engine.minimise(losses).grad_norm)
        found["reports"].append(sender.send(version))
        found["differences"].append(_difference(board, engine, version))
    sender.close()
    return found


def _difference(board: Any, engine: Any, version: int) -> float:
    """Largest difference between the rollout's log-probabilities and ours."""
    worst = 0.0
    for row in json.loads(board.get(f"samples_{version}")):
        tokens = torch.tensor([PROMPT + row["token_ids"]])
        with torch.no_grad():
            logits = engine.forward(tokens, torch.tensor([tokens.shape[1]]))[0]
        logprobs = torch.log_softmax(logits / row["temperature"], -1)[len(PROMPT) - 1 : -1]
        ours = logprobs.gather(-1, torch.tensor(row["token_ids"])[:, None])[:, 0]
        worst = max(worst, float((ours - torch.tensor(row["logprobs"])).abs().max()))
    return worst


def _rollout(spot: Spot, folder: Path) -> dict[str, Any]:
    from hpcflow.roles.rollout_engine import RolloutEngine
    from tests.support.rollouts import settings

    board = spot.board()
    engine = RolloutEngine(settings(folder))
    port = int(board.get("weights_port"))
    engine.open_weights(ADDRESS, port, first_rank=1, world_size=2, timeout_s=60)
    versions = []
    for version in range(VERSIONS + 1):
        if version:
            engine.receive_weights(version)
        samples = _samples(engine)
        versions.append({sample["version"] for sample in samples})
        board.set(f"samples_{version}", json.dumps(samples))
    found = {"versions": versions, "contract": _contract_of_generate(engine)}
    found["refusal"] = _push_a_wrong_shape(engine)
    engine.close()
    return found


def _samples(engine: Any) -> list[dict[str, Any]]:
    from hpcflow.roles.rollout_engine import SampleRequest

    requests = [
        SampleRequest(PROMPT, max_new_tokens=16, temperature=temperature, seed=seed)
        for temperature in TEMPERATURES
        for seed in range(2)
    ]
    return [
        {
            "token_ids": sample.token_ids,
            "logprobs": sample.logprobs,
            "temperature": request.temperature,
            "version": sample.weights_version,
        }
        for request, sample in zip(requests, engine.generate(requests), strict=True)
    ]


def _contract_of_generate(engine: Any) -> dict[str, Any]:
    from hpcflow.roles.rollout_engine import SampleRequest

    def draw(**changes: Any) -> Any:
        fields: dict[str, Any] = {"prompt_ids": PROMPT, "max_new_tokens": 8, "temperature": 1.0, "seed": 7}
        return SampleRequest(**(fields | changes))

    first, again, other, greedy, greedy2 = engine.generate(
        [draw(), draw(), draw(seed=8), draw(temperature=0.0), draw(temperature=0.0, seed=9)]
    )
    [stopped] = engine.generate([draw(stop_token_ids=[first.token_ids[3]])])
    # Together more tokens than one pass takes, with no prefix in common.
    crowd = engine.generate([draw(prompt_ids=[first_id, *PROMPT]) for first_id in range(2, 26)])
    return {
        "seed_repeats": first == again,
        "seed_matters": first.token_ids != other.token_ids,
        "greedy_repeats": greedy == greedy2,
        "length": (len(first.token_ids), first.finish_reason),
        "stopped": (first.token_ids, stopped.token_ids, stopped.finish_reason),
        "none": engine.generate([]),
        "crowd": [len(sample.token_ids) for sample in crowd],
    }


def _push_a_wrong_shape(engine: Any) -> str:
    from tests.support.weight_updates import error_of, push_update

    engine.close_weights()
    wrong = {"model.norm.weight": torch.zeros(3)}
    return error_of(lambda: push_update(engine, wrong, version=VERSIONS + 1))


def _refuse(case: str, folder: Path) -> dict[str, Any]:
    """One good update, also to weights that were drawn at random, then the bad one of this case."""
    from hpcflow.roles.rollout_engine import RolloutEngine, SampleRequest
    from tests.support.rollouts import settings
    from tests.support.tiny_model import tiny_model
    from tests.support.weight_updates import error_of, push_update

    engine = RolloutEngine(replace(settings(folder), random_weights=case == "missing parameter"))
    model = tiny_model(tied=False, seed=1)
    request = SampleRequest([5, 6, 7], max_new_tokens=8, temperature=1.0, seed=1)
    good = {name: tensor.detach() for name, tensor in model.named_parameters()}
    push_update(engine, good, version=1)
    [sample] = engine.generate([request])
    found = {
        "difference": _difference_to_model(model, sample),
        "refusal": error_of(lambda: push_update(engine, _spoil(good, case), version=2)),
        "generate": error_of(lambda: engine.generate([request])),
        "receive": error_of(lambda: engine.receive_weights(3)),
    }
    engine.close()
    return found


def _spoil(good: dict[str, torch.Tensor], case: str) -> dict[str, torch.Tensor]:
    rest = {name: tensor for name, tensor in good.items() if name != SPOILT}
    if case == "unknown name":
        return {**rest, SPOILT.replace("v_proj", "w_proj"): good[SPOILT]}
    return rest


def _difference_to_model(model: Any, sample: Any) -> float:
    tokens = torch.tensor([[5, 6, 7, *sample.token_ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(input_ids=tokens).logits[0, 2:-1], -1)
    ours = logprobs.gather(-1, torch.tensor(sample.token_ids)[:, None])[:, 0]
    return float((ours - torch.tensor(sample.logprobs)).abs().max())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What both actors and the rollout found over all versions."""
    from tests.support.tiny_model import make_tiny_model

    folders = [str(make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied)) for tied in (True, False)]
    return run_distributed(_walk, ACTORS + 1, arguments=folders, fresh=[ACTORS], timeout_s=200)


def test_rollout_and_trainer_agree_after_every_update(found: list[Any]) -> None:
    for actor in found[:ACTORS]:
        assert len(actor["differences"]) == VERSIONS + 1
        assert max(actor["differences"]) < TOLERANCE
        assert min(actor["norms"]) > 0.01


def test_every_sample_carries_the_version_it_was_drawn_with(found: list[Any]) -> None:
    assert found[ACTORS]["versions"] == [{version} for version in range(VERSIONS + 1)]


def test_buckets_are_measured_on_full_parameters_under_zero_3(found: list[Any]) -> None:
    for actor in found[:ACTORS]:
        for version, report in enumerate(actor["reports"], start=1):
            assert report.version == version
            assert report.bytes > 300_000
            assert report.buckets >= 6


def test_samples_keep_the_contract_of_generate(found: list[Any]) -> None:
    contract = found[ACTORS]["contract"]
    assert contract["seed_repeats"]
    assert contract["seed_matters"]
    assert contract["greedy_repeats"]
    assert contract["length"] == (8, "length")
    assert contract["none"] == []


def test_more_prompt_tokens_than_one_pass_takes_are_answered_in_several(found: list[Any]) -> None:
    assert found[ACTORS]["contract"]["crowd"] == [8] * 24


def test_a_stop_token_ends_the_sample_and_is_part_of_it(found: list[Any]) -> None:
    full, stopped, reason = found[ACTORS]["contract"]["stopped"]
    first_stop = full.index(full[3]) + 1
    assert stopped == full[:first_stop]
    assert reason == "stop"


def test_a_wrong_shape_is_refused_by_name(found: list[Any]) -> None:
    assert "the rollout model refused parameter model.norm.weight [3]" in found[ACTORS]["refusal"]


def test_untied_and_dummy_weights_are_replaced_whole(found: list[Any]) -> None:
    assert max(found[ACTORS][case]["difference"] for case in REFUSED) < TOLERANCE


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown name", "model.layers.1.self_attn.w_proj.weight"),
        ("missing parameter", "lacks weights of 1 layers: model.layers.1.self_attn.qkv_proj"),
    ],
)
def test_a_bad_update_is_refused_by_name(found: list[Any], case: str, words: str) -> None:
    assert words in found[ACTORS][case]["refusal"]


@pytest.mark.parametrize("case", REFUSED)
def test_after_a_refusal_nothing_is_generated_or_received(found: list[Any], case: str) -> None:
    assert "version 2 did not arrive whole" in found[ACTORS][case]["generate"]
    assert "version 2 did not arrive whole" in found[ACTORS][case]["receive"]
