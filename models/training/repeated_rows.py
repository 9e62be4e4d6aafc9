"""Measure which share of rows is there more than once, as after a delivery that came twice.

A row is known by a hash of 64 bits of its columns, labels and time, so that of a million rows none is taken for another
by chance. Rows that are alike in the data of a model that knows little of each (two clicks on one item) count too: the
share means something only beside that of the version before.

Costs: a pass over each column, and one sort of a hash for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Batch
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.kernels.hashing import hash_strings

Hashes = NDArray[np.uint64]
FACTOR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


def repeated_share(rows: Sequence[Batch]) -> float:
    """Return the share of rows that repeat another one of them; NaN without rows."""
    hashes = [_rows(batch) for batch in rows if len(batch)]
    if not hashes:
        return float("nan")
    count = sum(map(len, hashes))
    return 1 - len(np.unique(np.concatenate(hashes))) / count


def _rows(batch: Batch) -> Hashes:
    columns: list[Column] = [batch.columns[name] for name in sorted(batch.columns)]
    hashes = np.zeros(len(batch), np.uint64)
    for column in (*columns, batch.label, *(() if batch.time is None else (batch.time,))):
        hashes = _mixed(hashes + _hashes(column))
    return hashes


def _hashes(column: Column) -> Hashes:
    """Return a hash for each row of a column."""
    if isinstance(column, Strings):
        return hash_strings(column, 0).view(np.uint64)
    if isinstance(column, Ragged):
        splits = column.row_splits - column.row_splits[0]
        lengths = np.diff(splits).astype(np.uint64)
        places = np.arange(splits[-1], dtype=np.uint64) - np.repeat(splits[:-1].astype(np.uint64), np.diff(splits))
        values = _hashes(column.values)[column.row_splits[0] : column.row_splits[-1]]
        # The order within a row counts: each value is mixed with its place.
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(values + _mixed(places)), dtype=np.uint64)])
        return _mixed(sums[splits[1:]] - sums[splits[:-1]] + lengths)
    matrix = np.asarray(column).reshape(len(column), -1)
    bits = matrix.astype(np.float64).view(np.uint64) if matrix.dtype.kind == "f" else matrix.astype(np.uint64)
    hashes = np.zeros(len(column), np.uint64)
    for part in bits.T:
        hashes = _mixed(hashes + part)
    return hashes


def _mixed(values: Hashes) -> Hashes:
    """Spread each number over all bits; not linear, so that sums of columns do not cancel."""
    values = (values ^ (values >> SHIFT)) * FACTOR
    return values ^ (values >> SHIFT)
