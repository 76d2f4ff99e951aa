"""A tokenizer that is made in code at once: one token per printable ASCII letter."""

from __future__ import annotations

import string

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'forbidden' %}{{ raise_exception('no such role') }}{% endif %}"
    "<{{ m['role'][0] }}>{{ m['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def tiny_tokenizer(
    *, chat_template: str | None = None, bos: bool = False, closing_eos: bool = False
) -> PreTrainedTokenizerFast:
    """Ids: 0 `[PAD]`, 1 `[EOS]`, 2 `[BOS]`, then the letters; plain text may get BOS and EOS added."""
    words = ["[PAD]", "[EOS]", "[BOS]", *string.printable[:95]]
    backend = tokenizers.Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="?")
    )
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    before, after = "[BOS] " if bos else "", " [EOS]" if closing_eos else ""
    backend.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}", special_tokens=[("[EOS]", 1), ("[BOS]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        eos_token="[EOS]",
        bos_token="[BOS]",
        chat_template=chat_template,
    )
