"""The order of prompts, across epoch edges and interruptions, and the seeds of samples."""

from __future__ import annotations

import datetime
import json
import logging
from collections import Counter

import pytest

from hpcflow.driver.prompts import HeldOut, Prompt, PromptStream, epoch_order, sample_seed
from hpcflow.errors import FirstStepFault


def prompts(count: int, *, first: int = 0) -> list[Prompt]:
    """Ids leave gaps, as they do where rows were dropped."""
    return [
        Prompt(id=10 * index, token_ids=(first + index,), text=str(index), row={"n": index})
        for index in range(count)
    ]


def stream(count: int, *, seed: int = 3, shuffle: bool = True) -> PromptStream:
    return PromptStream(prompts(count), seed=seed, shuffle=shuffle)


def ids(taken: list[Prompt]) -> list[int]:
    return [prompt.id for prompt in taken]


def straight(count: int, take: int, steps: int) -> list[list[int]]:
    source = stream(count)
    return [ids(source.next(take)) for _ in range(steps)]


@pytest.mark.parametrize(
    ("count", "take"),
    [
        pytest.param(4, 2, id="divides"),
        pytest.param(5, 2, id="does not divide"),
        pytest.param(7, 7, id="an epoch per step"),
        pytest.param(3, 8, id="several epochs per step"),
        pytest.param(1, 1, id="one prompt"),
    ],
)
def test_an_interruption_after_any_step_changes_nothing(count: int, take: int) -> None:
    steps = 9
    wanted = straight(count, take, steps)
    for stop in range(steps + 1):
        before = stream(count)
        for _ in range(stop):
            before.next(take)
        saved = json.loads(json.dumps(before.state()))
        after = stream(count)
        after.load_state(saved)
        assert after.state() == saved
        assert [ids(after.next(take)) for _ in range(stop, steps)] == wanted[stop:], stop


def test_two_resumes_in_a_row_change_nothing() -> None:
    wanted = straight(5, 2, 6)
    taken, state = [], stream(5).state()
    for _ in range(3):
        resumed = stream(5)
        resumed.load_state(state)
        taken += [ids(resumed.next(2)), ids(resumed.next(2))]
        state = resumed.state()
    assert taken == wanted


def test_a_state_loaded_into_a_used_stream_wins_over_its_position() -> None:
    fresh, used = stream(5), stream(5)
    used.next(13)
    used.load_state(fresh.state())
    assert ids(used.next(11)) == ids(fresh.next(11))


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    source = stream(4)
    source.next(2)
    assert source.state() == {"epoch": 0, "position": 2}
    source.next(2)
    assert source.state() == {"epoch": 1, "position": 0}
    assert source.epoch == 1
    source.next(9)
    assert source.state() == {"epoch": 3, "position": 1}


def test_each_epoch_takes_every_prompt_once_in_an_order_of_its_own() -> None:
    source = stream(50)
    epochs = [ids(source.next(50)) for _ in range(4)]
    assert all(sorted(epoch) == ids(prompts(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert ids(prompts(50)) not in epochs


def test_a_step_across_the_edge_ends_one_epoch_and_begins_the_next() -> None:
    source, whole = stream(5), stream(5)
    first, second = ids(whole.next(5)), ids(whole.next(5))
    assert ids(source.next(3)) == first[:3]
    assert ids(source.next(4)) == first[3:] + second[:2]


def test_the_seed_decides_the_order() -> None:
    assert ids(stream(50, seed=1).next(50)) == ids(stream(50, seed=1).next(50))
    assert ids(stream(50, seed=1).next(50)) != ids(stream(50, seed=2).next(50))


def test_neighbouring_seeds_and_epochs_do_not_share_orders() -> None:
    """Adding seed and epoch would make epoch 1 of seed 0 the epoch 0 of seed 1."""
    orders = {tuple(epoch_order(20, seed=seed, epoch=epoch)) for seed in range(6) for epoch in range(6)}
    assert len(orders) == 36


def test_the_order_is_the_same_on_every_machine() -> None:
    """A change here breaks the resumption of runs that were started before it."""
    assert epoch_order(8, seed=0, epoch=0).tolist() == [0, 3, 2, 6, 1, 7, 5, 4]
    assert epoch_order(8, seed=7, epoch=2).tolist() == [3, 0, 6, 7, 5, 2, 4, 1]


def test_without_shuffling_every_epoch_is_in_file_order() -> None:
    source = stream(3, shuffle=False)
    assert ids(source.next(7)) == [0, 10, 20, 0, 10, 20, 0]


@pytest.mark.parametrize(
    "state", [{"epoch": 0, "position": 4}, {"epoch": 2, "position": -1}, {"epoch": -1, "position": 0}]
)
def test_a_state_beyond_the_data_is_a_data_fault(state: dict[str, int]) -> None:
    with pytest.raises(FirstStepFault, match="4 usable prompts") as caught:
        stream(4).load_state(state)
    assert caught.value.cause == "data"


def test_held_out_prompts_that_training_sees_are_counted_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        heldout = HeldOut(prompts(6, first=3), training=prompts(5))
    assert heldout.overlap == 2
    assert "2 of 6 held-out prompts are in data.train too (rows 0, 10)" in caplog.text


def test_separate_sets_raise_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        heldout = HeldOut(prompts(6, first=100), training=prompts(5))
    assert heldout.overlap == 0
    assert ids(list(heldout.prompts)) == ids(prompts(6))
    assert caplog.text == ""


def test_sample_seeds_are_the_same_on_every_machine_and_fit_31_bits() -> None:
    assert sample_seed(0, 0, 0, 0) == 217617547
    assert sample_seed(1, 20, 300, 4) == 1253942620
    seeds = [sample_seed(1, step, 5, 0) for step in range(2000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30


def test_sample_seeds_differ_in_every_argument() -> None:
    arguments = [
        (run, step, prompt, sample)
        for run in range(4)
        for step in range(4)
        for prompt in (0, 1, 10, 11)
        for sample in (0, 1, 10, 11)
    ]
    seeds = Counter(sample_seed(*each) for each in arguments)
    assert len(seeds) == len(arguments)


def test_a_row_becomes_json_even_with_what_json_does_not_know() -> None:
    row = {"when": datetime.date(2026, 1, 2), "letters": "\u00e4"}
    made = Prompt(id=0, token_ids=(1,), text="x", row=row)
    assert json.loads(made.row_json) == {"when": "2026-01-02", "letters": "\u00e4"}
    assert made.row_json.isascii()
