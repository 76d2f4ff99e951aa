"""DeepSpeed ZeRO 1, 2, 3 on one and on two ranks against plain torch.

One set of processes per world size walks through everything; the tests read what it found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.distributed import Spot, run_distributed

pytestmark = pytest.mark.dist
STAGES = (1, 2, 3)
Findings = dict[str, Any]


def _walk(spot: Spot, folder: str) -> dict[int, Findings]:
    from tests.support import training

    training.join_group(spot.board(), rank=spot.rank, world_size=spot.world_size)
    return {stage: _walk_stage(spot, stage, Path(folder)) for stage in STAGES}


def _walk_stage(spot: Spot, stage: int, folder: Path) -> Findings:
    from hpcflow.roles.train_engine import TrainEngine
    from tests.support import training
    from tests.support.tiny_model import tiny_model

    options = training.settings(stage)
    plain = training.PlainTrainer(tiny_model(), options)
    engine = TrainEngine(tiny_model(), options)
    rows = list(range(training.ROWS))[spot.rank :: spot.world_size]
    found: Findings = {"specs": [(s.name, s.shape) for s in engine.parameter_specs()]}
    found["same_at_start"] = _distance(training.weights_of(engine), plain)
    norms = []
    for seed, microbatches in enumerate((1, 2, 4)):
        losses = training.micro_losses(engine, rows=rows, microbatches=microbatches, seed=seed)
        norms.append((engine.minimise(losses).grad_norm, plain.step(seed)))
    found["norms"] = norms
    found["distance"] = _distance(training.weights_of(engine), plain)
    found.update(_poison_one_rank(spot, engine, rows))
    found.update(_save_and_load(engine, rows, folder, stage, spot.rank))
    found["padding"] = _padding_influence(engine)
    return found


def _distance(weights: dict[str, torch.Tensor], plain: Any) -> float:
    pairs = dict(plain.model.named_parameters())
    assert list(pairs) == list(weights)
    return max(float((pairs[name] - tensor).abs().max()) for name, tensor in weights.items())


def _poison_one_rank(spot: Spot, engine: Any, rows: list[int]) -> Findings:
    from tests.support import training

    before, steps = training.weights_of(engine), engine.optimizer_steps
    factor = float("nan") if spot.rank == spot.world_size - 1 else 1.0
    losses = training.micro_losses(engine, rows=rows, microbatches=2, seed=3, factor=factor)
    report = engine.minimise(losses)
    after = training.weights_of(engine)
    losses = training.micro_losses(engine, rows=rows, microbatches=2, seed=3)
    return {
        "poisoned": report,
        "poison_changed": [name for name in before if not torch.equal(before[name], after[name])],
        "steps_counted": engine.optimizer_steps - steps,
        "skipped_steps": engine.skipped_steps,
        "after_poison": engine.minimise(losses),
    }


def _save_and_load(engine: Any, rows: list[int], folder: Path, stage: int, rank: int) -> Findings:
    """Sync, save, sync again with uneven rows between, then go back and repeat."""
    from tests.support import training

    state: dict[str, Any] = {"rng": torch.get_rng_state(), "rank": rank}
    engine.save(folder, f"stage{stage}", state)

    def two_steps() -> tuple[list[float], dict[str, torch.Tensor]]:
        norms = []
        for seed in (5, 6):
            losses = training.micro_losses(engine, rows=rows, microbatches=2, seed=seed)
            norms.append(engine.minimise(losses).grad_norm)
        return norms, training.weights_of(engine)

    straight_norms, straight = two_steps()
    steps = engine.optimizer_steps
    loaded = engine.load(folder, f"stage{stage}")
    resumed_norms, resumed = two_steps()
    return {
        "resumed_norms": (straight_norms, resumed_norms),
        "resumed_equal": all(torch.equal(straight[name], resumed[name]) for name in straight),
        "resumed_steps": (steps, engine.optimizer_steps),
        "client_state": loaded["rank"] == rank and torch.equal(loaded["rng"], state["rng"]),
    }


def _padding_influence(engine: Any) -> float:
    tokens = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
    lengths = torch.tensor([3, 5])
    dirty = tokens.clone()
    dirty[0, 3:] = -100
    with torch.no_grad():
        clean_logits = engine.forward(tokens, lengths)
        dirty_logits = engine.forward(dirty, lengths)
        short_logits = engine.forward(tokens[:1, :3], lengths[:1])
    return float(
        max(
            (clean_logits[0, :3] - dirty_logits[0, :3]).abs().max(),
            (clean_logits[:1, :3] - short_logits).abs().max(),
        )
    )


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank found, for a world of one and of two."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return run_distributed(_walk, request.param, arguments=[str(folder)], timeout_s=150)


@pytest.mark.parametrize("stage", STAGES)
def test_gathered_weights_are_those_of_the_plain_model(ranks: Any, stage: int) -> None:
    for found in ranks:
        assert found[stage]["same_at_start"] == 0.0


@pytest.mark.parametrize("stage", STAGES)
def test_full_shapes_are_known_without_gathering(ranks: Any, stage: int) -> None:
    for found in ranks:
        shapes = dict(found[stage]["specs"])
        assert shapes["model.embed_tokens.weight"] == (128, 64)
        assert "lm_head.weight" not in shapes


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_norm_depends_neither_on_ranks_nor_on_microbatches(ranks: Any, stage: int) -> None:
    for found in ranks:
        for engine_norm, plain_norm in found[stage]["norms"]:
            assert engine_norm == pytest.approx(plain_norm, rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_three_steps_equal_plain_adamw(ranks: Any, stage: int) -> None:
    for found in ranks:
        assert found[stage]["distance"] < 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_nan_on_one_rank_changes_no_weight_on_any_rank(ranks: Any, stage: int) -> None:
    for found in ranks:
        assert found[stage]["poisoned"].skipped
        assert found[stage]["poison_changed"] == []
        assert found[stage]["skipped_steps"] == 1
        assert found[stage]["steps_counted"] == 1
        assert not found[stage]["after_poison"].skipped
        assert found[stage]["after_poison"].grad_norm < 100


@pytest.mark.parametrize("stage", STAGES)
def test_a_loaded_checkpoint_continues_bit_for_bit(ranks: Any, stage: int) -> None:
    for found in ranks:
        straight, resumed = found[stage]["resumed_norms"]
        assert straight == resumed
        assert found[stage]["resumed_equal"]
        assert len(set(found[stage]["resumed_steps"])) == 1
        assert found[stage]["client_state"]


@pytest.mark.parametrize("stage", STAGES)
def test_padding_has_no_influence_on_real_tokens(ranks: Any, stage: int) -> None:
    for found in ranks:
        assert found[stage]["padding"] < 1e-5
