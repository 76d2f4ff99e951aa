"""Models of the roles, from a local Hugging Face folder: policy, value model, reward model.

Plain loads on purpose, also under ZeRO-3: each rank holds the whole model once, in host memory or
on its GPU, until DeepSpeed partitions it. Partitioning while loading (zero.Init) is a process-wide
switch inside transformers that treats new heads and tied weights specially; it pays only for models
that no single device holds.

Nothing is ever downloaded. Dropout is 0 everywhere: two passes over the same tokens must agree.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from hpcflow.errors import FirstStepFault
from hpcflow.weights.base import DTYPES

Dtype = Literal["float32", "bfloat16"]
Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class _Build:
    """How to make a model; `labels` 0 keeps the language-model head.

    Parameters whose names start with `head` may be missing from the folder; "" stands for none.
    """

    dtype: Dtype
    device: Device
    random_weights: bool
    seed: int
    labels: int = 0
    head: str = ""


def causal_lm(
    folder: Path, *, dtype: Dtype, device: Device, random_weights: bool = False, seed: int = 0
) -> PreTrainedModel:
    """The policy: logits (B, T, V)."""
    how = _Build(dtype, device, random_weights, seed)
    return _build(AutoModelForCausalLM, folder, how)[0]


def value_model(
    folder: Path, *, dtype: Dtype, device: Device, random_weights: bool = False, seed: int = 0
) -> PreTrainedModel:
    """The policy's body with one output per token (B, T, 1); a head that the folder lacks starts at 0.

    A drawn head would give the first advantages a noise that no reward caused.
    """
    how = _Build(dtype, device, random_weights, seed, labels=1, head="score.")
    model, missing = _build(AutoModelForTokenClassification, folder, how)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in missing or (random_weights and name.startswith(how.head)):
                parameter.zero_()
    return model


def reward_model(
    folder: Path, *, dtype: Dtype, device: Device, random_weights: bool = False, seed: int = 0
) -> PreTrainedModel:
    """One score per row (B, 1), read at the last token that is not padding."""
    how = _Build(dtype, device, random_weights, seed, labels=1)
    return _build(AutoModelForSequenceClassification, folder, how)[0]


def vocabulary(folder: Path) -> int:
    """Number of token ids that the model of `folder` knows."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return int(config.get_text_config().vocab_size)


def refuse_other_vocabulary(key: str, folder: Path, *, role: str, policy: int) -> None:
    """A model that reads the policy's token ids must give them the same meaning.

    Raises:
        FirstStepFault: (cause `spec`) the model of `folder`, named by `key` of the spec, does not know
            just as many ids as the policy, `policy`.
    """
    own = vocabulary(folder)
    if own != policy:
        raise FirstStepFault(
            f"{key} {folder}: its vocabulary has {own} tokens, the policy's has {policy}",
            cause="spec",
            role=role,
            hint="it reads the policy's token ids: name a model that shares the policy's tokenizer",
        )


def quiet() -> None:
    """Silence progress bars and load reports of the libraries; their warnings and errors stay."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def _build(auto_class: Any, folder: Path, how: _Build) -> tuple[PreTrainedModel, set[str]]:  # noqa: ANN401
    """The model, and the parameters of its head that the folder does not hold."""
    quiet()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _without_dropout(config)
    if how.labels:
        config.num_labels = how.labels
    dtype, device = DTYPES[how.dtype], torch.device(how.device)
    devices = [torch.cuda.current_device()] if how.device == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Covers random weights and new heads; the caller's random state stays as it was.
        torch.manual_seed(how.seed)
        if how.random_weights:
            with device:
                model = auto_class.from_config(config, dtype=dtype)
            return model, set()
        model, found = auto_class.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    missing = set(found["missing_keys"])
    _refuse_missing(folder, auto_class.__name__, sorted(missing), head=how.head)
    return model.to(device), missing


def _refuse_missing(folder: Path, kind: str, missing: list[str], *, head: str) -> None:
    """transformers would draw missing weights at random and go on."""
    lost = [name for name in missing if not (head and name.startswith(head))]
    if lost:
        raise FirstStepFault(
            f"{folder} lacks {len(lost)} weights that {kind} needs: {', '.join(lost[:3])}",
            cause="spec",
            role="",
            hint="name a folder that was saved from a model of this kind",
        )


def _without_dropout(config: PretrainedConfig) -> None:
    rates = [name for name in config.to_dict() if name.endswith(("dropout", "pdrop"))]
    config.update({name: 0.0 for name in [*rates, "classifier_dropout"]})
