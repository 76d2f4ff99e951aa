"""A checkpoint exists once its manifest is in place, and only while all its files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcflow.checkpoint.store import CheckpointStore
from hpcflow.rundir import MANIFEST, RunDir


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(RunDir(tmp_path / "a run, with 'quotes'"), keep=2)


def save(store: CheckpointStore, step: int, content: str = "weights") -> Path:
    folder = store.begin(step)
    (folder / "actor").mkdir()
    (folder / "actor" / "shard").write_text(content)
    store.commit(step, attempt=1, driver={"position": step})
    return folder


def test_the_newest_complete_checkpoint_is_found_with_its_driver_state(
    store: CheckpointStore,
) -> None:
    save(store, 9)
    save(store, 10)
    found = store.latest()
    assert found is not None
    assert (found.manifest.step, found.manifest.driver) == (10, {"position": 10})


def test_no_checkpoint_is_none(store: CheckpointStore) -> None:
    assert store.latest() is None


def test_a_folder_without_manifest_is_no_checkpoint(store: CheckpointStore) -> None:
    save(store, 10)
    unfinished = store.begin(20)
    (unfinished / "shard").write_text("half")
    found = store.latest()
    assert found is not None
    assert found.manifest.step == 10


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest cut", "newer format"])
def test_a_damaged_checkpoint_is_passed_over(store: CheckpointStore, damage: str) -> None:
    save(store, 10)
    folder = save(store, 20)
    shard, listing = folder / "actor" / "shard", folder / MANIFEST
    match damage:
        case "cut":
            shard.write_text("wei")
        case "gone":
            shard.unlink()
        case "manifest cut":
            listing.write_text(listing.read_text()[:-20])
        case "newer format":
            text = listing.read_text().replace('"format": 1', '"format": 2')
            listing.write_text(text)
    found = store.latest()
    assert found is not None
    assert found.manifest.step == 10


def test_what_an_attempt_left_unfinished_is_begun_afresh(store: CheckpointStore) -> None:
    (store.begin(10) / "stale shard").write_text("from a killed attempt")
    folder = save(store, 10)
    assert not (folder / "stale shard").exists()
    assert store.complete(10) is not None


def test_only_the_newest_complete_checkpoints_are_kept(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        save(store, step)
    assert store.run.checkpoint_steps() == [20, 30]


def test_an_unfinished_checkpoint_does_not_count_against_those_kept(store: CheckpointStore) -> None:
    save(store, 10)
    save(store, 20)
    store.begin(25)
    save(store, 30)
    assert [step for step in store.run.checkpoint_steps() if store.complete(step)] == [20, 30]
