"""The model reward on a tiny classifier: scores do not depend on company, padding or the pad id."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, Qwen3ForSequenceClassification

from hpcflow.errors import FirstStepFault
from hpcflow.roles.contract import ScoreRequest
from hpcflow.roles.reward_model import ModelRewardRole
from tests.support.tiny_model import VOCABULARY, tiny_config

PAD, EOS = 0, 1

# Rows end in EOS, in the pad id, or are cut off; lengths are unsorted.
ROWS = [[5, 6, 7, EOS], [9], [5, 6, 7, 8, 9, 10, PAD], [5, 6, 7], [11, PAD, PAD], [12, EOS]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward model")
    config = tiny_config()
    config.num_labels = 1
    torch.manual_seed(0)
    Qwen3ForSequenceClassification(config).save_pretrained(path)
    return path


def role(folder: Path, *, microbatch: int = 4, vocabulary: int = VOCABULARY) -> ModelRewardRole:
    return ModelRewardRole(
        str(folder), dtype="float32", device="cpu", microbatch=microbatch, vocabulary=vocabulary
    )


def request(rows: list[list[int]]) -> ScoreRequest:
    texts = [""] * len(rows)
    return ScoreRequest(prompts=texts, responses=texts, rows=texts, token_ids=rows)


def by_hand(folder: Path, row: list[int]) -> float:
    """One row alone, its hidden state read at its last token: no padding, no pooling rule."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([row])).last_hidden_state
        return float(model.score(hidden)[0, -1, 0])


@pytest.mark.parametrize("microbatch", [1, 4, 64])
def test_a_score_is_that_of_the_row_alone_at_its_last_token(folder: Path, microbatch: int) -> None:
    reply = role(folder, microbatch=microbatch).score(request(ROWS))
    wanted = [by_hand(folder, row) for row in ROWS]
    assert reply.scores == pytest.approx(wanted, abs=1e-5)
    assert len({round(score, 3) for score in wanted}) == len(ROWS), "rows must be told apart"
    assert reply.faults == []


def test_no_samples_are_no_scores(folder: Path) -> None:
    assert role(folder).score(request([])).scores == []


def test_another_vocabulary_than_the_policy_is_a_spec_fault(folder: Path) -> None:
    with pytest.raises(FirstStepFault, match="128 tokens, the policy's has 129") as caught:
        role(folder, vocabulary=VOCABULARY + 1)
    assert caught.value.cause == "spec"


def test_an_output_that_is_not_finite_costs_its_sample(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight[77] = float("nan")
    model.save_pretrained(tmp_path)
    reply = role(tmp_path).score(request([[5, 6], [77, 6], [5, 7]]))
    assert [score is None for score in reply.scores] == [False, True, False]
    assert reply.faults == ["sample 1: the reward model's output is not finite"]
