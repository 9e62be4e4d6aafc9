"""Compute the keys of a hashed table from ids, for training and serving alike.

A hashed table has a fixed number of rows. Every id has several of them, which add up to the id's row; ids that share
one of them differ in others. Each key lies in a range of its own, so that two different keys never mean the same row:

    quotient_remainder   id modulo m * q, floored, so that -1 is the last; then remainder and quotient by m (Shi et al.
                         2019). Keys: the remainder, in [0, m), and m + quotient, below m + q. Of any m * q consecutive
                         ids, including negative ones, no two have both keys in common
    k_way                key j is j * rows + hash j of the id, modulo rows (hash embeddings, Svenstrup et al. 2017)
    binary_code          the hashed id's bits in pieces of `bits`, from the lowest; key j is (j << bits) + piece j (Yan
                         et al. 2021)

Hashes are splitmix64's finaliser of the id's 64 bits plus (j + 1) times its constant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

GOLDEN = 0x9E3779B97F4A7C15


def _quotient_remainder(ids: Int64s, remainders: int, quotients: int) -> Int64s:
    quotient, remainder = np.divmod(np.mod(ids, np.int64(remainders * quotients)), np.int64(remainders))
    return np.stack([remainder, remainders + quotient], axis=1)


def _k_way(ids: Int64s, rows: int, keys: int) -> Int64s:
    codes = np.empty((len(ids), keys), np.int64)
    for j in range(keys):
        codes[:, j] = (_hashed(ids, j) % np.uint64(rows)).view(np.int64) + j * rows
    return codes


def _binary_code(ids: Int64s, bits: int, keys: int) -> Int64s:
    codes, bits_of = np.empty((len(ids), keys), np.int64), _hashed(ids, 0)
    for j in range(keys):
        piece = (bits_of >> np.uint64(j * bits)) & np.uint64((1 << bits) - 1)
        codes[:, j] = piece.view(np.int64) + (j << bits)
    return codes


def _hashed(ids: Int64s, j: int) -> NDArray[np.uint64]:
    z = np.ascontiguousarray(ids).view(np.uint64) + np.uint64((j + 1) * GOLDEN % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


CODES: dict[str, Callable[[Int64s, int, int], Int64s]] = {
    "quotient_remainder": _quotient_remainder,
    "k_way": _k_way,
    "binary_code": _binary_code,
}
"""By op: a function from ids [n] to keys, int64 [n, keys per id]."""
