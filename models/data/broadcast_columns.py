"""Recordings' columns of inputs that a request sent once: the value in its first row, null in its others.

Only files that say that they are recordings (serving.telemetry.request_recorder; what `freshet join` makes of them
says so too) have such columns; in any other file a null is a null. A request lies in one row group, so reading from
the beginning of one is enough to fill forward.

Filled, a list of a request has the size of all its rows: whoever fills takes a bounded part at a time, by row_nbytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from freshet_serving.processor.repository import METADATA

CELL_NBYTES = 8
"""Of a number, or of the offset of a string or a list, in a row."""


def broadcast_columns(schema: pa.Schema) -> frozenset[str]:
    """The columns of a recording that hold its requests' inputs; none of any other file."""
    try:
        about = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        return frozenset(column["name"] for column in about.get("features", ()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return frozenset()


def fill_forward_rows(column: pa.Array) -> np.ndarray:
    """For each row the one whose value it has: itself, or for a null the last before it that has one. int64 [n]"""
    own = np.arange(len(column))
    if not column.null_count:
        return own
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(np.maximum.accumulate(np.where(valid, own, 0)))


def row_nbytes(column: pa.Array) -> np.ndarray:
    """What each row of a column takes in memory. int64 [n]"""
    kind = column.type
    if pt.is_list(kind) or pt.is_large_list(kind):
        ends = np.concatenate([[0], np.cumsum(row_nbytes(column.values))])
        at = column.offsets.to_numpy()
        return np.asarray(ends[at[1:]] - ends[at[:-1]] + CELL_NBYTES)
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths.astype(np.int64) + CELL_NBYTES)
    return np.full(len(column), CELL_NBYTES)


def fill_forward(batches: Iterable[pa.RecordBatch], columns: frozenset[str], nbytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows with every value of `columns` in every row of its request.

    Args:
        batches: Consecutive rows, from the beginning of a request on.
        columns: Those to fill.
        nbytes: What the filled columns of a batch take at most, unless a single row takes more.
    """
    last: dict[str, pa.Array] = {}
    for batch in batches:
        arrays, rows, weights = list(batch.columns), {}, np.zeros(batch.num_rows, np.int64)
        for at, name in enumerate(batch.schema.names):
            if name not in columns or not batch.num_rows:
                continue
            before = last.get(name)
            if arrays[at].null_count:
                source = arrays[at] if before is None else pa.concat_arrays([before, arrays[at]])
                rows[at] = fill_forward_rows(source)[len(source) - batch.num_rows :]
                weights += row_nbytes(source)[rows[at]]
                arrays[at] = source
            # A copy: a slice would keep all of the batch.
            end = rows[at][-1] if at in rows else batch.num_rows - 1
            last[name] = arrays[at].take(pa.array([end]))
        if not rows:
            yield batch
            continue
        for first, end in weighted_ranges(weights, nbytes):
            parts = [
                array.take(pa.array(rows[at][first:end])) if at in rows else array.slice(first, end - first)
                for at, array in enumerate(arrays)
            ]
            yield pa.RecordBatch.from_arrays(parts, schema=batch.schema)


def weighted_ranges(weights: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows that weigh at most so much, or are one row."""
    ends, first = np.cumsum(weights), 0
    while first < len(weights):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, end
        first = end
