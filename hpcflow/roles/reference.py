"""The reference: the policy's first weights, frozen. Each rank is a copy; no process group."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hpcflow.algorithms.masks import token_logprobs
from hpcflow.roles.batches import Rows, per_token
from hpcflow.roles.contract import Logprobs, TokenBatch
from hpcflow.roles.models import causal_lm
from hpcflow.roles.setting import RoleSetting


class ReferenceRole:
    """Implements `contract.Reference`."""

    def __init__(self, setting: RoleSetting) -> None:
        spec, model = setting.spec, setting.spec.model
        assert spec.roles.reference is not None
        self._microbatch = spec.roles.reference.microbatch_per_gpu
        self._device = setting.device
        self._temperature = spec.roles.rollout.temperature
        self._model = causal_lm(
            Path(model.path),
            dtype=model.dtype,
            device=setting.device,
            random_weights=model.random_weights,
            seed=spec.seed,
        ).eval()

    def logprobs(self, request: TokenBatch) -> Logprobs:
        """See the contract."""
        return Logprobs(
            per_token(
                request,
                microbatch=self._microbatch,
                device=self._device,
                compute=self._logprobs_BT,
            )
        )

    def _logprobs_BT(self, rows: Rows) -> Tensor:
        # Attention is causal, so padding on the right needs no mask.
        logits_BTV = self._model(input_ids=rows.tokens_BT, use_cache=False).logits
        return token_logprobs(logits_BTV, rows.tokens_BT, temperature=self._temperature, mask_BT=rows.mask_BT)
