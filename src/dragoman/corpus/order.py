"""Random orders as pure functions of a key: the same on every machine and NumPy version."""

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
MIXERS = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)


def keyed_hash(values: NDArray[np.uint64], *key: int) -> NDArray[np.uint64]:
    """Mix 64-bit values with a key (splitmix64's finaliser, once per part of the key)."""
    mixed = values
    for part in key:
        mixed = _mix(mixed + np.uint64((part * GOLDEN + GOLDEN) % 2**64))
    return mixed


def keyed_permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return the numbers below `count` in the order that belongs to the key."""
    hashes = keyed_hash(np.arange(count, dtype=np.uint64), *key)
    return np.argsort(hashes, kind="stable")


def keyed_seed(*key: int) -> int:
    """Return the 64-bit seed that belongs to the key."""
    return int(keyed_hash(np.zeros(1, dtype=np.uint64), *key)[0])


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in MIXERS:
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))
