"""From a data row's prompt to the exact token ids that are used, by the model's own tokenizer.

A prompt is rendered once: its text and ids travel together from here, and its length is the length of
those ids. Ids that an engine sampled are only ever decoded for the reward, never encoded again, because
decode and encode are not each other's inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from hpcflow.errors import FirstStepFault


class UnusablePrompt(Exception):
    """Why this row cannot be a prompt; it costs the row only."""


@dataclass(frozen=True)
class Rendered:
    """A prompt as text and as the ids that the engines get."""

    text: str
    token_ids: tuple[int, ...]


class Renderer:
    """Renders prompts with one tokenizer, with its chat template or as plain text."""

    def __init__(self, tokenizer: Any, *, chat_template: bool, vocabulary: int) -> None:  # noqa: ANN401
        """`tokenizer` is a transformers tokenizer; the model knows the ids below `vocabulary`.

        Raises:
            FirstStepFault: (cause `spec`) a chat template is asked for and the tokenizer has none.
        """
        if chat_template and tokenizer.chat_template is None:
            raise FirstStepFault(
                "data.chat_template is on, but the model's tokenizer has no chat template",
                cause="spec",
                role="driver",
                hint="use an instruction-tuned model's folder, or set data.chat_template: false",
            )
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._vocabulary = vocabulary

    @classmethod
    def load(cls, folder: str, *, chat_template: bool) -> Renderer:
        """With the tokenizer and the model's config in `folder`.

        Raises:
            FirstStepFault: (cause `spec`) one of them cannot be loaded, or the chat template is missing.
        """
        from transformers import AutoConfig, AutoTokenizer

        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise FirstStepFault(
                f"model.path {folder}: config or tokenizer cannot be loaded: {reason}",
                cause="spec",
                role="driver",
                hint="the folder must hold the tokenizer's files (tokenizer.json) beside the config",
            ) from error
        return cls(tokenizer, chat_template=chat_template, vocabulary=config.vocab_size)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of a response without special tokens, as the reward sees it."""
        # "Cleaning up" would drop blanks that the model did write.
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def render(self, prompt: str | list[dict[str, Any]]) -> Rendered:
        """Render a prompt that `spec.rows` found usable; a text is one user message of a chat.

        Raises:
            UnusablePrompt: the chat template refuses it, or nothing is left to answer.
            FirstStepFault: (cause `spec`) the model does not know one of its token ids.
        """
        text = self._apply_template(prompt) if self._chat_template else prompt
        assert isinstance(text, str), "rows holds back messages where there is no chat template"
        # The template already wrote the special tokens that it wants.
        ids = self._tokenizer(text, add_special_tokens=not self._chat_template)["input_ids"]
        token_ids = tuple(self._without_closing_eos(text, ids))
        if not token_ids:
            raise UnusablePrompt("the prompt has no tokens")
        # Ids of prompts, not the size of the tokenizer: some have added tokens that no prompt uses.
        if max(token_ids) >= self._vocabulary:
            raise FirstStepFault(
                f"the tokenizer gives id {max(token_ids)}, but the model's vocabulary has "
                f"{self._vocabulary} tokens",
                cause="spec",
                role="driver",
                hint="model.path must hold the tokenizer that its model was trained with",
            )
        return Rendered(text=text, token_ids=token_ids)

    def _apply_template(self, prompt: str | list[dict[str, Any]]) -> str:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if messages[-1]["role"] == "assistant":
            raise UnusablePrompt("the last message is the assistant's: nothing is left to answer")
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
        except jinja2.TemplateError as error:
            raise UnusablePrompt(f"the chat template refuses it: {error}") from error
        return text

    def _without_closing_eos(self, text: str, ids: list[int]) -> list[int]:
        """Some tokenizers close every text; a response cannot begin after the end."""
        eos, word = self._tokenizer.eos_token_id, self._tokenizer.eos_token
        closed = bool(ids) and eos is not None and ids[-1] == eos
        return ids[:-1] if closed and not text.endswith(word) else ids
