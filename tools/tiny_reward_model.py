"""Train and save the demo's small reward model: it tells right answers from wrong ones.

Everything runs in one thread and follows from the seed. Never trains on a held-out problem.

Shapes: B answered problems, T tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from demo_tasks import Problem, Split, wrong_answer
from safetensors.torch import load_file
from tiny_model import WEIGHTS, batches, encode, make_tokenizer, model_config, save, set_rate, take_step
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast


@dataclass(frozen=True)
class RewardTraining:
    """Training of the reward model: each problem of a batch once with its answer, once with a wrong one."""

    learning_rate: float = 1.5e-3
    batch: int = 128
    ramp_steps: int = 20
    steps: int = 200


def make_reward_model(
    split: Split, policy: Path, folder: Path, *, seed: int, plan: RewardTraining, say: Callable[[str], None]
) -> None:
    """Train a model that tells right answers from wrong ones, starting from the layers of `policy`; save it.

    Its one logit is read at the last token (eos): above 0 means right.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    config = model_config(tokenizer)
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config)
    layers = {
        k.removeprefix("model."): v for k, v in load_file(policy / WEIGHTS).items() if k.startswith("model.")
    }
    model.model.load_state_dict(layers)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    rng = random.Random(seed)
    started = time.monotonic()
    for step, batch in enumerate(batches(split.train, plan.batch, seed=seed + 1), start=1):
        ramp, left = min(1.0, step / plan.ramp_steps), 1.0 - step / plan.steps
        set_rate(optimizer, plan.learning_rate * min(ramp, max(0.05, 2 * left)))
        answered, right_B = _right_and_wrong(batch, rng)
        loss = F.binary_cross_entropy_with_logits(_judge(model, tokenizer, answered), right_B)
        take_step(optimizer, model, loss)
        if step % 20 == 0:
            took = time.monotonic() - started
            say(f"  step {step:3d} of {plan.steps}: loss {loss.item():.2f}, {took:.0f} s")
        if step >= plan.steps:
            break
    answered, right_B = _right_and_wrong(split.heldout, rng)
    model.eval()
    with torch.no_grad():
        scores_B = _judge(model, tokenizer, answered)
    hits = float(((scores_B > 0) == (right_B > 0)).float().mean())
    say(f"  held-out problems: AUC {auc(scores_B, right_B):.3f}, {hits:.1%} judged rightly")
    save(model, tokenizer, folder)


def auc(scores_B: torch.Tensor, right_B: torch.Tensor) -> float:
    """Share of (right, wrong) pairs in which the right one has the higher score; ties count half."""
    right, wrong = scores_B[right_B > 0][:, None], scores_B[right_B == 0][None]
    return float(((right > wrong).double() + 0.5 * (right == wrong).double()).mean())


def _right_and_wrong(problems: list[Problem], rng: random.Random) -> tuple[list[Problem], torch.Tensor]:
    """Return every problem with its answer, then every one with a wrong one, and right_B (1.0 or 0.0)."""
    wrong = [Problem(prompt=p.prompt, answer=wrong_answer(p, rng)) for p in problems]
    return [*problems, *wrong], torch.cat([torch.ones(len(problems)), torch.zeros(len(wrong))])


def _judge(model: Any, tokenizer: PreTrainedTokenizerFast, answered: list[Problem]) -> torch.Tensor:  # noqa: ANN401
    tokens_BT, _ = encode(tokenizer, answered)
    mask_BT = (tokens_BT != tokenizer.pad_token_id).long()
    logits_B: torch.Tensor = model(input_ids=tokens_BT, attention_mask=mask_BT).logits[:, 0]
    return logits_B
