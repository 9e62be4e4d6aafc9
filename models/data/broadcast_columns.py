"""Expand recorded inputs that a request sent once: the file has them in the request's first row, null in the others.

Only files marked as recordings (by serving.telemetry.request_recorder, and preserved by `freshet join`) have such
columns; in any other file a null is a null. A request lies within one row group, so it is enough to fill forward from
the beginning of a row group.

An expanded list takes its size times the rows of its request, so callers expand a bounded part at a time, measured by
row_nbytes.
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
"""Bytes a row of a number, or of the offset of a string or a list."""


def broadcast_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the columns of a recording that hold its requests' inputs; none for any other file."""
    try:
        about = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        return frozenset(column["name"] for column in about.get("features", ()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return frozenset()


def fill_forward_rows(column: pa.Array) -> np.ndarray:
    """Return the row that supplies each row's value, int64 [n].

    It is the row itself or, for a null, the last non-null row before it.
    """
    own = np.arange(len(column))
    if not column.null_count:
        return own
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(np.maximum.accumulate(np.where(valid, own, 0)))


def row_nbytes(column: pa.Array) -> np.ndarray:
    """Return the bytes in memory of each row of a column, int64 [n]."""
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
    """Yield the same rows with nulls replaced by the value of their request.

    Args:
        batches: Consecutive rows, starting at the beginning of a request.
        columns: Columns to fill.
        nbytes: Maximum bytes of a batch's filled columns, unless a single row takes more.
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
            # Copy: a slice would keep the whole batch in memory.
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
    """Yield consecutive ranges [first, end) of rows.

    Args:
        weights: Weight of each row, [n].
        most: Maximum weight of a range, unless it is a single row.
    """
    ends, first = np.cumsum(weights), 0
    while first < len(weights):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, end
        first = end
