"""Models of the roles, from a folder that holds a tiny policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForSequenceClassification

from hpcflow.errors import FirstStepFault
from hpcflow.roles import models
from tests.support.tiny_model import VOCABULARY, make_tiny_model, tiny_config, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with configuration and weights."""
    return make_tiny_model(tmp_path_factory.mktemp("policy"))


TOKENS = torch.tensor([[5, 6, 7, 8]])


def test_the_policy_has_the_weights_of_the_folder(folder: Path) -> None:
    policy = models.causal_lm(folder, dtype="float32", device="cpu")
    assert torch.equal(policy(input_ids=TOKENS).logits, tiny_model()(input_ids=TOKENS).logits)


def test_random_weights_follow_their_seed_and_leave_the_caller_alone(folder: Path) -> None:
    state = torch.get_rng_state()
    first, again, other = (
        models.causal_lm(folder, dtype="bfloat16", device="cpu", random_weights=True, seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    name = "model.norm.weight"
    assert first.state_dict()[name].dtype == torch.bfloat16
    name = "model.embed_tokens.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


def test_the_value_model_shares_the_body_and_has_one_output_per_token(folder: Path) -> None:
    first = models.value_model(folder, dtype="float32", device="cpu")
    assert first(input_ids=TOKENS).logits.shape == (1, 4, 1)
    assert torch.equal(first(input_ids=TOKENS).logits, torch.zeros(1, 4, 1))
    body = tiny_model().state_dict()["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(first.state_dict()["model.layers.1.mlp.up_proj.weight"], body)


def test_a_value_head_that_was_trained_is_kept(folder: Path, tmp_path: Path) -> None:
    trained = models.value_model(folder, dtype="float32", device="cpu")
    with torch.no_grad():
        trained.score.weight.fill_(0.5)
    trained.save_pretrained(tmp_path)
    again = models.value_model(tmp_path, dtype="float32", device="cpu")
    assert torch.equal(again.score.weight, trained.score.weight)


def test_the_reward_model_scores_a_row(tmp_path: Path) -> None:
    config = tiny_config()
    config.num_labels = 1
    Qwen3ForSequenceClassification(config).save_pretrained(tmp_path)
    reward = models.reward_model(tmp_path, dtype="float32", device="cpu")
    assert reward(input_ids=TOKENS).logits.shape == (1, 1)


def test_a_reward_model_without_its_head_is_refused(folder: Path) -> None:
    with pytest.raises(FirstStepFault, match=r"lacks 1 weights .* score\.weight"):
        models.reward_model(folder, dtype="float32", device="cpu")


def test_dropout_of_the_configuration_is_ignored(tmp_path: Path) -> None:
    config = tiny_config()
    config.attention_dropout = 0.5
    config.save_pretrained(tmp_path)
    value = models.value_model(tmp_path, dtype="float32", device="cpu", random_weights=True)
    value.train()
    assert torch.equal(value(input_ids=TOKENS).logits, value(input_ids=TOKENS).logits)


def test_a_model_of_another_vocabulary_is_refused_by_the_key_that_names_it(folder: Path) -> None:
    models.refuse_other_vocabulary("roles.critic.model", folder, role="critic", policy=VOCABULARY)
    with pytest.raises(FirstStepFault, match=r"roles\.critic\.model .* has 128 tokens, .* has 127") as caught:
        models.refuse_other_vocabulary("roles.critic.model", folder, role="critic", policy=127)
    assert (caught.value.cause, caught.value.role) == ("spec", "critic")
