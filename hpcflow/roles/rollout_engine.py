"""The rollout engine: vLLM inside this process, on GPUs and on CPU alike.

Token ids in, token ids out; nothing is tokenized here. The log-probabilities it returns are those
of the distribution it sampled from, log_softmax(logits / temperature), with no truncation, so that
the trainer can recompute them. Weights arrive through vLLM's own weight transfer.

It owns the torch.distributed world of its process: never start a train engine beside it. It is not
thread-safe: `generate` and `receive_weights` must not overlap, and each blocks its caller.

Who waits for whom: `open_weights` and `receive_weights` wait for actor rank 0, bounded by the
timeout given at `open_weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hpcflow.roles import vllm_api
from hpcflow.weights.base import WeightTransferError
from hpcflow.weights.gloo import BACKEND

FinishReason = Literal["stop", "length"]

# vLLM's own number of tokens that one pass on a CPU takes.
CPU_TOKENS_PER_PASS = 4096


@dataclass(frozen=True)
class RolloutSettings:
    """How to load the model; `kv_cache_bytes` is per worker, `address` where its groups listen."""

    model_folder: Path
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    seed: int
    max_model_len: int
    kv_cache_bytes: int
    tensor_parallel: int = 1
    enforce_eager: bool = True
    max_sequences: int = 256
    weight_backend: str | None = BACKEND
    random_weights: bool = False
    address: str = "127.0.0.1"


@dataclass(frozen=True)
class SampleRequest:
    """One sample to draw; temperature 0 is greedy. `stop_token_ids` alone end a sample early.

    The end-of-sequence token of the model is not implied: name it in `stop_token_ids`.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_token_ids: Sequence[int] = ()


@dataclass(frozen=True)
class Sample:
    """`token_ids` includes the stop token; `logprobs[i]` is about `token_ids[i]`.

    Greedy samples carry the log-probabilities of temperature 1.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    weights_version: int


def load_vllm(settings: RolloutSettings) -> vllm_api.VllmApi:
    """Import vLLM as this engine needs it; loads no model. Raises UserError where it cannot serve."""
    return vllm_api.load(
        vllm_api.environment(
            address=settings.address,
            tensor_parallel=settings.tensor_parallel,
            compile_nothing=settings.device == "cpu" and settings.enforce_eager,
        )
    )


class RolloutEngine:
    """vLLM's `LLM` with versioned weights; `weights_version` 0 is what was loaded at the start."""

    def __init__(self, settings: RolloutSettings) -> None:
        self._api = load_vllm(settings)
        self._llm = self._api.LLM(**_engine_arguments(settings))
        self.weights_version = 0
        self._broken = ""

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Draw all samples in one batch; the answer is in the order of `requests`.

        Raises WeightTransferError after an update that did not arrive whole.
        """
        self._refuse_if_broken()
        if not requests:
            return []
        prompts = [self._api.TokensPrompt(prompt_token_ids=list(r.prompt_ids)) for r in requests]
        params = [self._sampling(request) for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [self._sample(output.outputs[0]) for output in outputs]

    def open_weights(
        self, address: str, port: int, *, first_rank: int, world_size: int, timeout_s: float
    ) -> None:
        """Meet actor rank 0 at its store; our workers take the ranks from `first_rank` on.

        Raises WeightTransferError or torch.distributed.DistError where it does not come.
        """
        info = {
            "address": address,
            "port": port,
            "first_rank": first_rank,
            "world_size": world_size,
            "timeout_s": timeout_s,
        }
        self._llm.init_weight_transfer_engine({"init_info": info})

    def receive_weights(self, version: int) -> None:
        """Take one whole update and stamp all later samples with `version`.

        Cached prefixes of older weights are dropped. Raises WeightTransferError; the engine then
        holds a mixture of weights and is of no more use.
        """
        self._refuse_if_broken()
        self._broken = f"version {version} did not arrive whole"
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": {"version": version}})
        self._llm.finish_weight_update()
        if not self._llm.reset_prefix_cache():
            raise WeightTransferError("vLLM kept its prefix cache: a request is still running")
        self.weights_version = version
        self._broken = ""

    def close_weights(self) -> None:
        """Leave the weight group."""
        self._llm.collective_rpc(_leave_weight_group)

    def close(self) -> None:
        """Free the model and end vLLM's own processes."""
        self._llm.llm_engine.engine_core.shutdown()

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise WeightTransferError(
                f"the rollout weights are incomplete: {self._broken}",
                hint="start the rollout role again",
            )

    def _sampling(self, request: SampleRequest) -> Any:  # noqa: ANN401
        return self._api.SamplingParams(
            max_tokens=request.max_new_tokens,
            temperature=request.temperature,
            top_p=1.0,
            seed=request.seed,
            stop_token_ids=list(request.stop_token_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )

    def _sample(self, completion: Any) -> Sample:  # noqa: ANN401
        flat = completion.logprobs
        return Sample(
            token_ids=list(completion.token_ids),
            # Of each position the sampled token comes first.
            logprobs=[flat.logprobs[start] for start in flat.start_indices],
            finish_reason=cast(FinishReason, completion.finish_reason),
            weights_version=self.weights_version,
        )


def _engine_arguments(settings: RolloutSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(settings.model_folder),
        "dtype": settings.dtype,
        "seed": settings.seed,
        "max_model_len": settings.max_model_len,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": "uni" if settings.tensor_parallel == 1 else "mp",
        "enforce_eager": settings.enforce_eager,
        "max_num_seqs": settings.max_sequences,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        # Sampling is what the request says, not what a file beside the weights says.
        "generation_config": "vllm",
        "skip_tokenizer_init": True,
        "load_format": "dummy" if settings.random_weights else "auto",
        "disable_log_stats": True,
    }
    if settings.weight_backend is not None:
        arguments["weight_transfer_config"] = {"backend": settings.weight_backend}
    if settings.device == "cuda":
        # The cache has its size in bytes; a share of the card would only refuse to start where
        # other roles hold the rest of it.
        arguments["gpu_memory_utilization"] = 0.05
    else:
        # Prompts are read whole: vLLM takes back the draw that follows half a prompt by rewinding the
        # sample's generator, and generators on the CPU cannot be rewound.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(
            CPU_TOKENS_PER_PASS, settings.max_model_len, settings.max_sequences
        )
    return arguments


def _leave_weight_group(worker: Any) -> None:  # noqa: ANN401
    if worker.weight_transfer_engine is not None:
        worker.weight_transfer_engine.shutdown()
