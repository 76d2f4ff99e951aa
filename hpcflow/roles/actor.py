"""The actor: the policy as a DeepSpeed engine; sends its weights straight to the rollout ranks.

While it sends, every rank of actor and rollout is in the transfer; nobody else waits.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hpcflow.algorithms.masks import token_logprobs
from hpcflow.algorithms.ppo import Ppo
from hpcflow.roles.algorithm import ppo_of
from hpcflow.roles.batches import Rows, per_token
from hpcflow.roles.contract import (
    ActorUpdate,
    Empty,
    Logprobs,
    SaveRequest,
    TokenBatch,
    UpdateReport,
    WeightsOpen,
    WeightsPort,
    WeightsVersion,
)
from hpcflow.roles.models import causal_lm
from hpcflow.roles.setting import RoleSetting
from hpcflow.roles.train_engine import TrainEngine
from hpcflow.roles.trained import Sums, Update, load_trained, save_trained, train_settings
from hpcflow.weights.base import WeightSender
from hpcflow.weights.gloo import GlooWeightSender


class ActorRole:
    """Implements `contract.Actor`."""

    def __init__(self, setting: RoleSetting) -> None:
        spec, model = setting.spec, setting.spec.model
        setting.join_group()
        self._setting = setting
        self._temperature = spec.roles.rollout.temperature
        self._ppo: Ppo = ppo_of(spec.algorithm)
        self._engine = TrainEngine(
            causal_lm(
                Path(model.path),
                dtype=model.dtype,
                device=setting.device,
                random_weights=model.random_weights,
                seed=spec.seed,
            ),
            train_settings(spec.roles.actor, setting.plan.batching.actor, setting),
        )
        self._update = Update(self._engine, spec.roles.actor.microbatch_per_gpu, setting.device)
        self._sender: WeightSender = GlooWeightSender(
            source=self._engine,
            is_sender=setting.identity.rank == 0,
            bucket_bytes=spec.communication.weight_bucket_mib * 2**20,
            timeout_s=spec.communication.collective_timeout_s,
        )

    def logprobs(self, request: TokenBatch) -> Logprobs:
        """See the contract."""
        return Logprobs(
            per_token(
                request,
                microbatch=self._update.microbatch,
                device=self._setting.device,
                compute=self._logprobs_BT,
            )
        )

    def update(self, request: ActorUpdate) -> UpdateReport:
        """See the contract."""
        sums = Sums()

        def loss(rows: Rows, denominator: float) -> Tensor:
            reference = request.reference_logprobs
            result = self._ppo.policy_loss(
                self._logprobs_BT(rows),
                rows.take(request.old_logprobs),
                advantages_BT=rows.take(request.advantages),
                mask_BT=rows.mask_BT,
                denominator=denominator,
                ref_logprobs_BT=None if reference is None else rows.take(reference),
                beta=request.kl_coefficient,
            )
            sums.add("tokens", result.tokens)
            sums.add("clipped", result.clipped)
            sums.add("policy_kl", result.kl_sum)
            sums.highest("ratio", result.ratio_max)
            return result.loss

        return self._update.run(request.batch, request.minibatches, loss, sums)

    def listen_weights(self, request: Empty) -> WeightsPort:
        """See the contract."""
        if self._setting.identity.rank != 0:
            return WeightsPort(address="", port=0)
        address = self._setting.identity.address
        return WeightsPort(address=address, port=self._sender.listen(address))

    def open_weights(self, request: WeightsOpen) -> Empty:
        """See the contract."""
        if self._setting.identity.rank == 0:
            self._sender.open(request.world_size)
        return Empty()

    def send_weights(self, request: WeightsVersion) -> Empty:
        """See the contract."""
        self._sender.send(request.version)
        return Empty()

    def save(self, request: SaveRequest) -> Empty:
        """See the contract."""
        save_trained(self._engine, Path(request.folder), self._setting)
        return Empty()

    def load(self, request: SaveRequest) -> Empty:
        """See the contract."""
        load_trained(self._engine, Path(request.folder), self._setting)
        return Empty()

    def _logprobs_BT(self, rows: Rows) -> Tensor:
        logits_BTV = self._engine.forward(rows.tokens_BT, rows.lengths_B)
        return token_logprobs(logits_BTV, rows.tokens_BT, temperature=self._temperature, mask_BT=rows.mask_BT)
