"""What tests of the train engine share: a batch with uneven rows, its loss, and a plain oracle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from transformers import PreTrainedModel

from hpcflow.roles.rendezvous import GroupSpot, join, open_store
from hpcflow.roles.train_engine import TrainEngine, TrainSettings
from tests.support.distributed import ADDRESS
from tests.support.tiny_model import VOCABULARY

ROWS, TOKENS = 8, 12


def join_group(board: TCPStore, *, rank: int, world_size: int) -> None:
    """Join the default group of `world_size` ranks, whose port is exchanged over the board."""
    store = None
    if rank == 0:
        store, port = open_store(ADDRESS, timeout_s=60)
        board.set("group_port", str(port))
    else:
        port = int(board.get("group_port"))
    spot = GroupSpot(ADDRESS, port, rank, local_rank=rank, world_size=world_size)
    join(spot, backend="gloo", timeout_s=60, store=store)


def settings(zero_stage: int, *, learning_rate: float = 1e-3) -> TrainSettings:
    """The engine's settings on the CPU."""
    assert zero_stage in (1, 2, 3)
    return TrainSettings(
        zero_stage=zero_stage,  # type: ignore[arg-type]
        dtype="float32",
        device="cpu",
        learning_rate=learning_rate,
    )


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (ROWS, TOKENS) and lengths (ROWS,), one row of full length."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)
    lengths = torch.randint(2, TOKENS + 1, (ROWS,), generator=generator)
    lengths[0] = TOKENS
    return tokens, lengths


def mean_loss(
    logits_BTV: torch.Tensor, tokens_BT: torch.Tensor, lengths_B: torch.Tensor, *, count: int
) -> torch.Tensor:
    """Sum of next-token losses of these rows, divided by the GLOBAL `count`."""
    logprobs = torch.log_softmax(logits_BTV[:, :-1], -1)
    chosen = logprobs.gather(-1, tokens_BT[:, 1:, None])[..., 0]
    real = torch.arange(1, tokens_BT.shape[1]) < lengths_B[:, None]
    return -(chosen * real).sum() / count


def micro_losses(
    engine: TrainEngine, *, rows: list[int], microbatches: int, seed: int, factor: float = 1.0
) -> list[Callable[[], torch.Tensor]]:
    """The losses of `rows`, dealt to `microbatches`; `factor` (NaN, say) spoils the first one."""
    tokens, lengths = batch(seed)
    count = int((lengths - 1).sum())

    def loss(part: list[int], scale: float) -> torch.Tensor:
        logits = engine.forward(tokens[part], lengths[part])
        return scale * mean_loss(logits, tokens[part], lengths[part], count=count)

    parts = [rows[index::microbatches] for index in range(microbatches)]
    scales = [factor] + [1.0] * (microbatches - 1)
    return [
        lambda part=part, scale=scale: loss(part, scale)  # type: ignore[misc]
        for part, scale in zip(parts, scales, strict=True)
    ]


class PlainTrainer:
    """The oracle: the same optimizer steps in plain torch, all rows at once."""

    def __init__(self, model: PreTrainedModel, options: TrainSettings) -> None:
        self.model = model
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=options.learning_rate,
            betas=options.betas,
            eps=options.eps,
            weight_decay=options.weight_decay,
        )
        self._max_grad_norm = options.max_grad_norm

    def step(self, seed: int) -> float:
        """One step on the whole batch; returns the gradient norm before clipping."""
        tokens, lengths = batch(seed)
        logits = self.model(input_ids=tokens).logits
        self._optimizer.zero_grad()
        mean_loss(logits, tokens, lengths, count=int((lengths - 1).sum())).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm)
        self._optimizer.step()
        return float(norm)


def weights_of(engine: TrainEngine) -> dict[str, torch.Tensor]:
    """A copy of all full parameters (all ranks call it)."""
    return {name: tensor.clone() for name, tensor in engine.full_parameters()}
