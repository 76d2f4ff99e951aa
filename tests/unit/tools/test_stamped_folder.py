"""What a tool leaves on disk: whole folders only, and nothing made twice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stamped_folder import STAMP, key_of, make


def quiet(line: str) -> None:
    """Say nothing."""


def make_part(folder: Path, key: str, write: Callable[[Path], None]) -> None:
    make(folder / "part", key, write, say=quiet)


class Writer:
    """Writes one file and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "weights").write_text("four", encoding="utf-8")


def test_a_whole_part_with_the_same_key_is_left_alone(tmp_path: Path) -> None:
    write = Writer()
    make_part(tmp_path, "key", write)
    make_part(tmp_path, "key", write)
    assert write.calls == 1


def test_another_key_makes_the_part_anew(tmp_path: Path) -> None:
    write = Writer()
    make_part(tmp_path, "old", write)
    make_part(tmp_path, "new", write)
    assert write.calls == 2


@pytest.mark.parametrize("damage", ["truncated", "missing", "stamp"])
def test_a_damaged_part_is_made_anew(tmp_path: Path, damage: str) -> None:
    write = Writer()
    make_part(tmp_path, "key", write)
    weights = tmp_path / "part" / "weights"
    if damage == "truncated":
        weights.write_text("fo", encoding="utf-8")
    elif damage == "missing":
        weights.unlink()
    else:
        (tmp_path / "part" / STAMP).write_text("{", encoding="utf-8")
    make_part(tmp_path, "key", write)
    assert write.calls == 2
    assert weights.read_text(encoding="utf-8") == "four"


def test_a_failure_keeps_the_old_part_and_leaves_no_scratch(tmp_path: Path) -> None:
    make_part(tmp_path, "old", Writer())

    def fail(folder: Path) -> None:
        (folder / "weights").write_text("half", encoding="utf-8")
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        make_part(tmp_path, "new", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
    assert (tmp_path / "part" / "weights").read_text(encoding="utf-8") == "four"


def test_the_key_follows_parameters_and_code(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text("one", encoding="utf-8")
    key = key_of([source], "sums", 0)
    assert key != key_of([source], "sums", 1)
    source.write_text("two", encoding="utf-8")
    assert key != key_of([source], "sums", 0)
