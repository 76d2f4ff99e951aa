"""Write the config and tokenizer of a model with random weights: for timing a GPU, not for learning.

    python tools/make_random_model.py --out .demo/qwen3-0.6b

The config is that of a 0.6B-parameter Qwen3; the weights are drawn by the roles, from the run's seed
(`model.random_weights: true`). The tokenizer is the demo's, which is far smaller than the vocabulary: most
sampled ids decode to nothing, as random weights deserve.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_model import make_tokenizer
from transformers import Qwen3Config

SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description="Write config and tokenizer of a random-weight model.")
    parser.add_argument("--out", type=Path, default=Path(".demo/qwen3-0.6b"), help="folder to write")
    out: Path = parser.parse_args().out
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        **SIZES,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen3ForCausalLM"],
    )
    out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{out}: config and tokenizer written")


if __name__ == "__main__":
    main()
