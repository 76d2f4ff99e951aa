"""The reward role that scores with a transformers sequence classifier of one output.

It reads the policy's own token ids, never a text encoded again. Nothing is kept between calls, so ranks
are independent. The driver waits for `score`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch

from hpcflow.roles import models
from hpcflow.roles.contract import ScoreRequest, Scores
from hpcflow.roles.setting import RoleSetting
from hpcflow.spec.roles import ModelReward


class ModelRewardRole:
    """Scores prompt and response ids; a score that is not finite costs its sample."""

    def __init__(
        self,
        folder: str,
        *,
        dtype: models.Dtype,
        device: models.Device,
        microbatch: int,
        vocabulary: int,
    ) -> None:
        """Load the model of `folder`; `microbatch` rows are computed at once.

        Raises:
            FirstStepFault: (cause `spec`) its vocabulary is not the policy's `vocabulary` tokens, so the
                policy's token ids would mean something else to it.
        """
        models.refuse_other_vocabulary("roles.reward.model", Path(folder), role="reward", policy=vocabulary)
        self._model = models.reward_model(Path(folder), dtype=dtype, device=device).eval()
        self._device = device
        self._microbatch = microbatch
        self._vocabulary = vocabulary

    @classmethod
    def from_setting(cls, setting: RoleSetting) -> Self:
        """The role that the spec asks for."""
        spec = setting.spec
        wanted = spec.roles.reward
        assert isinstance(wanted, ModelReward)
        return cls(
            wanted.model,
            dtype=spec.model.dtype,
            device=setting.device,
            microbatch=wanted.microbatch_per_gpu,
            vocabulary=models.vocabulary(Path(spec.model.path)),
        )

    def score(self, request: ScoreRequest) -> Scores:
        """Score each sample; rows of similar length are computed together."""
        rows = request.token_ids
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        scores: list[float | None] = [None] * len(rows)
        for first in range(0, len(rows), self._microbatch):
            chosen = by_length[first : first + self._microbatch]
            values = self._classify([rows[index] for index in chosen])
            finite = torch.isfinite(values).tolist()
            for index, value, usable in zip(chosen, values.tolist(), finite, strict=True):
                scores[index] = value if usable else None
        faults = [
            f"sample {index}: the reward model's output is not finite"
            for index, score in enumerate(scores)
            if score is None
        ]
        return Scores(scores=scores, faults=faults)

    @torch.no_grad()
    def _classify(self, rows: list[list[int]]) -> torch.Tensor:
        """Scores (B,) float32 on the CPU, at each row's last token whatever the padding.

        transformers pools at the last token that is not the pad id. A response may end with that very id
        (pad = EOS is common), so rows are padded with an id that ends none of them.
        """
        last = {row[-1] for row in rows}
        pad = next(token for token in range(self._vocabulary) if token not in last)
        self._model.config.get_text_config().pad_token_id = pad
        width = max(len(row) for row in rows)
        tokens_BT = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        attention_BT = (torch.arange(width)[None, :] < lengths_B[:, None]).long()
        output = self._model(
            input_ids=tokens_BT.to(self._device), attention_mask=attention_BT.to(self._device)
        )
        values_B: torch.Tensor = output.logits.squeeze(-1).float().cpu()
        return values_B
