"""The rollout: one vLLM engine per rank, inside this process, behind our own RPC and token.

vLLM's own HTTP routes for weights, pause and sleep are open to every user of a node, so no server of
vLLM is started. While weights come in, this rank generates nothing.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from hpcflow.roles.contract import (
    Empty,
    GenerateRequest,
    Sample,
    Samples,
    WeightsOpen,
    WeightsVersion,
)
from hpcflow.roles.rollout_engine import RolloutEngine, RolloutSettings, SampleRequest, load_vllm
from hpcflow.roles.setting import RoleSetting
from hpcflow.weights.base import WeightReceiver
from hpcflow.weights.gloo import BACKEND

WEIGHT_BACKENDS = {"gloo": BACKEND}


class RolloutRole:
    """Implements `contract.Rollout`."""

    def __init__(self, setting: RoleSetting) -> None:
        self._timeout_s = setting.spec.communication.collective_timeout_s
        self._stop = stop_token_ids(setting.spec.model.path)
        self._engine = RolloutEngine(_settings(setting))
        self._weights: WeightReceiver = self._engine

    @staticmethod
    def check(setting: RoleSetting) -> None:
        """Import vLLM, and refuse one that lacks what is called; loads no model.

        Raises:
            UserError: names what is wrong with the installation.
        """
        load_vllm(_settings(setting))

    def generate(self, request: GenerateRequest) -> Samples:
        """See the contract."""
        requests = [
            SampleRequest(
                prompt_ids=prompt,
                max_new_tokens=request.max_response_tokens,
                temperature=request.temperature,
                seed=seed,
                stop_token_ids=self._stop,
            )
            for prompt, seed in zip(request.prompts, request.seeds, strict=True)
        ]
        return Samples(
            [
                Sample(
                    tokens=list(sample.token_ids),
                    logprobs=list(sample.logprobs),
                    finish=sample.finish_reason,
                    version=sample.weights_version,
                )
                for sample in self._engine.generate(requests)
            ]
        )

    def open_weights(self, request: WeightsOpen) -> Empty:
        """See the contract."""
        self._weights.open_weights(
            request.address,
            request.port,
            first_rank=request.rank,
            world_size=request.world_size,
            timeout_s=self._timeout_s,
        )
        return Empty()

    def receive_weights(self, request: WeightsVersion) -> Empty:
        """See the contract."""
        self._weights.receive_weights(request.version)
        return Empty()

    def close(self) -> None:
        """End the engine and its worker processes."""
        self._engine.close()


def _settings(setting: RoleSetting) -> RolloutSettings:
    spec, model, rollout = setting.spec, setting.spec.model, setting.spec.roles.rollout
    return RolloutSettings(
        model_folder=Path(model.path),
        dtype=model.dtype,
        device=setting.device,
        seed=spec.seed,
        max_model_len=setting.plan.batching.max_sequence_tokens,
        kv_cache_bytes=int(rollout.kv_cache_gib * 2**30),
        tensor_parallel=rollout.tensor_parallel,
        enforce_eager=rollout.enforce_eager,
        max_sequences=rollout.max_sequences,
        weight_backend=WEIGHT_BACKENDS[spec.communication.weights],
        random_weights=model.random_weights,
        address=setting.identity.address,
    )


def stop_token_ids(folder: str) -> tuple[int, ...]:
    """Every id that ends a response: of the generation config, the model's config, the tokenizer."""
    try:
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    except OSError:  # many folders have none
        generation = None
    config = AutoConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).eos_token_id
    found: set[int] = set()
    for ids in (generation, config, tokenizer):
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return tuple(sorted(found))
