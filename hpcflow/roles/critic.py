"""The critic: a value head on the policy's architecture, as a DeepSpeed engine of its own."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hpcflow.algorithms.masks import select, values_before_tokens
from hpcflow.roles.algorithm import ppo_of
from hpcflow.roles.batches import Rows, per_token
from hpcflow.roles.contract import (
    CriticUpdate,
    Empty,
    SaveRequest,
    TokenBatch,
    UpdateReport,
    Values,
)
from hpcflow.roles.models import refuse_other_vocabulary, value_model, vocabulary
from hpcflow.roles.setting import RoleSetting
from hpcflow.roles.train_engine import TrainEngine
from hpcflow.roles.trained import Sums, Update, load_trained, save_trained, train_settings


class CriticRole:
    """Implements `contract.Critic`."""

    def __init__(self, setting: RoleSetting) -> None:
        spec, critic = setting.spec, setting.spec.roles.critic
        if critic.model is not None:
            policy = vocabulary(Path(spec.model.path))
            refuse_other_vocabulary("roles.critic.model", Path(critic.model), role="critic", policy=policy)
        setting.join_group()
        self._setting = setting
        self._ppo = ppo_of(spec.algorithm)
        self._engine = TrainEngine(
            value_model(
                Path(critic.model or spec.model.path),
                dtype=spec.model.dtype,
                device=setting.device,
                random_weights=spec.model.random_weights and critic.model is None,
                seed=spec.seed,
            ),
            train_settings(critic, setting.plan.batching.critic, setting),
        )
        self._update = Update(self._engine, critic.microbatch_per_gpu, setting.device)

    def values(self, request: TokenBatch) -> Values:
        """See the contract."""
        return Values(
            per_token(
                request,
                microbatch=self._update.microbatch,
                device=self._setting.device,
                compute=lambda rows: select(self._values_BT(rows), rows.mask_BT),
            )
        )

    def update(self, request: CriticUpdate) -> UpdateReport:
        """See the contract."""
        sums = Sums()

        def loss(rows: Rows, denominator: float) -> Tensor:
            result = self._ppo.value_loss(
                self._values_BT(rows),
                rows.take(request.old_values),
                returns_BT=rows.take(request.returns),
                mask_BT=rows.mask_BT,
                denominator=denominator,
            )
            sums.add("tokens", result.tokens)
            sums.add("clipped", result.clipped)
            return result.loss

        return self._update.run(request.batch, request.minibatches, loss, sums)

    def save(self, request: SaveRequest) -> Empty:
        """See the contract."""
        save_trained(self._engine, Path(request.folder), self._setting)
        return Empty()

    def load(self, request: SaveRequest) -> Empty:
        """See the contract."""
        load_trained(self._engine, Path(request.folder), self._setting)
        return Empty()

    def _values_BT(self, rows: Rows) -> Tensor:
        head_BT = self._engine.forward(rows.tokens_BT, rows.lengths_B).squeeze(-1).float()
        return values_before_tokens(head_BT)
