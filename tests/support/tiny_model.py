"""A Qwen3 causal LM that is made in code in about a second: 2 layers, hidden 64, vocabulary 128."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 128


def tiny_config(*, tied: bool = True) -> Qwen3Config:
    """The configuration; weights are drawn wider than usual, so that logits differ clearly."""
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


def tiny_model(*, tied: bool = True, seed: int = 0) -> PreTrainedModel:
    """Random weights from `seed`, float32, on the CPU."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(tiny_config(tied=tied))


def make_tiny_model(folder: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """Save the model's configuration and weights (no tokenizer) into `folder`; returns it."""
    tiny_model(tied=tied, seed=seed).save_pretrained(folder)
    return folder
