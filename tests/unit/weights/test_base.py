"""The manifest: what an update holds and how it is cut into buckets."""

from __future__ import annotations

import pytest

from hpcflow.weights.base import Manifest, ParameterSpec


def _spec(name: str, *shape: int, dtype: str = "float32") -> ParameterSpec:
    return ParameterSpec(name, dtype, shape)


def _names(manifest: Manifest) -> list[list[str]]:
    return [[spec.name for spec in bucket] for bucket in manifest.buckets()]


def test_bytes_follow_full_shape_and_dtype() -> None:
    assert _spec("w", 3, 5).nbytes == 60
    assert _spec("w", 3, 5, dtype="bfloat16").nbytes == 30
    assert _spec("scalar").numel == 1


def test_neighbours_share_a_bucket_up_to_the_cap() -> None:
    specs = (_spec("a", 10), _spec("b", 10), _spec("c", 10))
    assert _names(Manifest(specs, bucket_bytes=80)) == [["a", "b"], ["c"]]
    assert _names(Manifest(specs, bucket_bytes=79)) == [["a"], ["b"], ["c"]]
    assert _names(Manifest(specs, bucket_bytes=120)) == [["a", "b", "c"]]


def test_a_parameter_larger_than_the_cap_stands_alone() -> None:
    specs = (_spec("a", 1), _spec("big", 100), _spec("c", 1))
    assert _names(Manifest(specs, bucket_bytes=16)) == [["a"], ["big"], ["c"]]


def test_a_bucket_has_one_dtype() -> None:
    specs = (_spec("a", 1), _spec("b", 1, dtype="bfloat16"), _spec("c", 1, dtype="bfloat16"))
    assert _names(Manifest(specs, bucket_bytes=1000)) == [["a"], ["b", "c"]]


def test_nothing_makes_no_bucket() -> None:
    assert Manifest((), bucket_bytes=1).buckets() == []


@pytest.mark.parametrize("name", ["model.layers.0.weight", "schicht_\N{LATIN SMALL LETTER U}\u00fc"])
def test_a_manifest_survives_its_own_text(name: str) -> None:
    manifest = Manifest((_spec(name, 2, 3), _spec("scalar", dtype="bfloat16")), bucket_bytes=7)
    assert Manifest.from_json(manifest.to_json()) == manifest
