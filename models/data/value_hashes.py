"""Hash the values of columns to 64 bits, to tell rows and values apart without keeping them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.kernels.hashing import hash_strings

Hashes = NDArray[np.uint64]
FACTOR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


def value_hashes(column: Column) -> Hashes:
    """Return a hash for each row of a column: alike if the row's values are, lists with their order."""
    if isinstance(column, Strings):
        return hash_strings(column, 0).view(np.uint64)
    if isinstance(column, Ragged):
        splits = column.row_splits - column.row_splits[0]
        lengths = np.diff(splits).astype(np.uint64)
        places = np.arange(splits[-1], dtype=np.uint64) - np.repeat(splits[:-1].astype(np.uint64), np.diff(splits))
        values = value_hashes(column.values)[column.row_splits[0] : column.row_splits[-1]]
        # The order within a row counts: each value is mixed with its place.
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed(values + mixed(places)), dtype=np.uint64)])
        return mixed(sums[splits[1:]] - sums[splits[:-1]] + lengths)
    matrix = np.asarray(column)
    matrix = matrix.reshape(len(matrix), math.prod(matrix.shape[1:]))
    bits = matrix.astype(np.float64).view(np.uint64) if matrix.dtype.kind == "f" else matrix.astype(np.uint64)
    hashes = np.zeros(len(column), np.uint64)
    for part in bits.T:
        hashes = mixed(hashes + part)
    return hashes


def mixed(values: Hashes) -> Hashes:
    """Spread each number over all bits; not linear, so that sums of columns do not cancel."""
    values = (values ^ (values >> SHIFT)) * FACTOR
    return values ^ (values >> SHIFT)
