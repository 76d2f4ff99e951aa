"""Make, warm up and save the demo's language model: a character-level Qwen3 of two layers.

Everything runs in one thread and follows from the seed. Never writes outside the folder it is given, and
never uses the held-out problems for anything but a report.

Shapes: B problems, T tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from demo_tasks import Problem, Split
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
WEIGHTS = "model.safetensors"
# The turns as they are, without marks: a prompt reads the same with the template and without.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class WarmUp:
    """Supervised training of the model before PPO: it ends early on purpose, at `goal`."""

    # Share of right answers when sampling at temperature 1, on problems of the training split.
    goal: float = 0.2
    learning_rate: float = 3e-3
    batch: int = 256
    ramp_steps: int = 20
    max_steps: int = 400
    judge_every: int = 5
    judged: int = 512


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character, and pad, eos and unknown, all distinct."""
    tokens = [PAD, EOS, UNK, "\n", *(c for c in string.printable if c.isprintable())]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
        padding_side="right",
    )


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Two layers, about 0.3 million parameters."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def make_policy(split: Split, folder: Path, *, seed: int, plan: WarmUp, say: Callable[[str], None]) -> None:
    """Warm a new model up on `split.train` and save it with its tokenizer in `folder`.

    Raises:
        RuntimeError: `plan.goal` was not reached in `plan.max_steps`.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = AutoModelForCausalLM.from_config(model_config(tokenizer))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    started = time.monotonic()
    for step, batch in enumerate(batches(split.train, plan.batch, seed=seed), start=1):
        tokens_BT, answer_BT = encode(tokenizer, batch)
        set_rate(optimizer, plan.learning_rate * min(1.0, step / plan.ramp_steps))
        logits_BTV = model(input_ids=tokens_BT[:, :-1]).logits
        loss = F.cross_entropy(logits_BTV[answer_BT[:, 1:]], tokens_BT[:, 1:][answer_BT[:, 1:]])
        take_step(optimizer, model, loss)
        if step % plan.judge_every:
            continue
        sampled, _ = accuracy(model, tokenizer, split.train[: plan.judged])
        if step % 20 == 0 or sampled >= plan.goal:
            say(
                f"  step {step:3d}: {sampled:6.1%} of sampled answers right (goal {plan.goal:.0%}), "
                f"loss {loss.item():.2f}, {time.monotonic() - started:.0f} s"
            )
        if sampled >= plan.goal:
            break
        if step >= plan.max_steps:
            raise RuntimeError(
                f"the warm-up reached {sampled:.1%} in {step} steps, its goal is {plan.goal:.0%}"
            )
    sampled, greedy = accuracy(model, tokenizer, split.heldout)
    say(f"  held-out problems: {sampled:.1%} right when sampled at temperature 1, {greedy:.1%} when greedy")
    save(model, tokenizer, folder)
    GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)


def encode(tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens_BT (int64: prompt, answer, eos, then pad) and answer_BT (bool: answer and eos)."""
    prompts = [tokenizer(p.prompt).input_ids for p in problems]
    answers = [[*tokenizer(p.answer).input_ids, tokenizer.eos_token_id] for p in problems]
    width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    tokens_BT = torch.full((len(problems), width), int(tokenizer.pad_token_id))
    answer_BT = torch.zeros(len(problems), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens_BT[row, :end] = torch.tensor(prompt + answer)
        answer_BT[row, len(prompt) : end] = True
    return tokens_BT, answer_BT


@torch.no_grad()
def accuracy(model: Any, tokenizer: PreTrainedTokenizerFast, problems: list[Problem]) -> tuple[float, float]:  # noqa: ANN401 - transformers is untyped here
    """Return the expected share of right answers when sampling at temperature 1, and the share when greedy.

    Exact, without sampling: the probability of the one right answer is the product over its tokens.
    """
    tokens_BT, answer_BT = encode(tokenizer, problems)
    logprobs_BTV = model(input_ids=tokens_BT[:, :-1]).logits.log_softmax(-1)
    targets_BT, mask_BT = tokens_BT[:, 1:], answer_BT[:, 1:]
    logprobs_BT = logprobs_BTV.gather(-1, targets_BT[..., None])[..., 0]
    sampled_B = torch.where(mask_BT, logprobs_BT, 0.0).sum(-1).exp()
    greedy_B = ((logprobs_BTV.argmax(-1) == targets_BT) | ~mask_BT).all(-1)
    return float(sampled_B.mean()), float(greedy_B.float().mean())


def batches(problems: list[Problem], size: int, *, seed: int) -> Iterator[list[Problem]]:
    """Yield batches drawn with replacement, without end."""
    rng = random.Random(seed)
    while True:
        yield rng.choices(problems, k=size)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def take_step(optimizer: torch.optim.Optimizer, model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Descend `loss` once, gradients clipped to norm 1."""
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:  # noqa: ANN401
    """Write what `save_pretrained` writes, without the seconds it spends on importing DeepSpeed."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file(model.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
