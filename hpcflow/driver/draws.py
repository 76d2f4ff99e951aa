"""Random choices of the driver, each a pure function of a key: no generator has a state to save.

The key says what is drawn and for which seed, step or epoch. numpy's legacy generator is used because its
stream is frozen: a run may resume under another numpy and still draw the same.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def permutation(count: int, key: str) -> npt.NDArray[np.int64]:
    """A permutation of range(count) that depends on its arguments only."""
    digest = hashlib.blake2b(key.encode(), digest_size=32).digest()
    generator = np.random.RandomState(np.frombuffer(digest, dtype="<u4").astype(np.int64))
    return generator.permutation(count).astype(np.int64)


def seed_of(key: str) -> int:
    """A seed in [0, 2**31) that depends on the key only."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little") & 0x7FFFFFFF
