"""vLLM's side of weight transfer over gloo: runs inside each vLLM worker process.

Loads updates through vLLM's layerwise reload, which keeps the addresses of the running kernels'
tensors. It refuses an update that has unknown names or wrong shapes, or that leaves a layer without
its weights: vLLM itself only logs the latter.

Never imported by the actor. vLLM calls it in the order init_transfer_engine, then for each update
start_weight_update, update_weights, finish_weight_update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from hpcflow.weights.base import ParameterSpec, WeightTransferError
from hpcflow.weights.gloo import GlooReceiver


@dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Where the sender's store is, and which ranks this engine's workers take."""

    address: str
    port: int
    first_rank: int
    world_size: int
    timeout_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The version that the sender must announce."""

    version: int


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):  # type: ignore[misc]
    """Receives full parameters from actor rank 0; each worker keeps its shard of them."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _receiver: GlooReceiver | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Meet the sender; waits at most `timeout_s`."""
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._receiver = GlooReceiver(
            init_info.address,
            init_info.port,
            rank=init_info.first_rank + worker,
            world_size=init_info.world_size,
            timeout_s=init_info.timeout_s,
        )

    def start_weight_update(self) -> None:
        """Put the layers into the state in which they take checkpoint weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one update; unlike the base class this works where there is no accelerator."""
        with set_current_vllm_config(self.vllm_config):
            self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Load parameter by parameter, so that a refusal can name the culprit."""
        if self._receiver is None:
            raise WeightTransferError("no sender is connected: init_transfer_engine comes first")
        self._receiver.receive(update_info.version, self._load)

    def finish_weight_update(self) -> None:
        """Check that every layer got its weights, then make them the running ones."""
        missing, tied = _unserved_layers(self.model)
        if missing:
            raise WeightTransferError(
                f"the update lacks weights of {len(missing)} layers: {', '.join(missing[:5])}",
                hint="actor and rollout must load the same architecture",
            )
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model, self.model_config)
            for layer in tied:
                # On CPU the output layer computes with a packed copy of the embedding, which the
                # reload of the embedding leaves as it was.
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = None

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Any) -> None:  # noqa: ANN401
        """Abstract in the base class up to vLLM 0.26; the actor sends by `gloo.GlooWeightSender`."""
        raise WeightTransferError("weights over gloo are sent by hpcflow.weights.gloo.GlooWeightSender")

    def _load(self, spec: ParameterSpec, tensor: torch.Tensor) -> None:
        try:
            self.model.load_weights([(spec.name, tensor.to(self.device))])
        except (KeyError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
            raise WeightTransferError(
                f"the rollout model refused parameter {spec.name} {list(spec.shape)}: {error!r}",
                hint="actor and rollout must load the same architecture",
            ) from error


def _unserved_layers(model: torch.nn.Module) -> tuple[list[str], list[Any]]:
    """Names of layers that got no weights of their own, and the layers tied to ones that did.

    An embedding is complete once it got any weight: its vocabulary is padded to whole tiles. A
    layer is tied when the tensors that its kernels use are all those of another, served layer.
    """
    waiting: dict[str, tuple[Any, set[int]]] = {}
    served: set[int] = set()
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        tensors = list(layer.parameters(recurse=False))
        if info.kernel_tensors is not None:
            # While a layer waits, the tensors that its kernels use are kept aside.
            tensors = list(info.kernel_tensors[0].values())
        # A weight that was packed for the CPU leaves an empty tensor, which has no address.
        addresses = {tensor.data_ptr() for tensor in tensors} - {0}
        pending = info.can_load() and info.load_numel < info.load_numel_total
        padded = isinstance(layer, VocabParallelEmbedding) and info.load_numel > 0
        if pending and tensors and not padded:
            waiting[name] = (layer, addresses)
        else:
            served |= addresses
    tied = {name for name, (_, own) in waiting.items() if own and own <= served}
    missing = [name for name in waiting if name not in tied]
    return missing, [waiting[name][0] for name in sorted(tied)]
