"""Read recorded inputs that a request sent once: the file has them in the request's first row, null in the others.

Only files marked as recordings (by serving.extensions.recorder, and preserved by `freshet join`) have such columns; in
any other file a null is a null. A request lies within one row group, and each row group begins with values of its own,
so it is enough to fill forward from there.

An expanded list takes its size times the rows of its request. So take_once and pick_once, which select and order rows,
keep such a value once; fill_forward, for callers that need it in each row, expands a bounded part at a time.
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
"""Bytes of a number, or of the offset of a string or a list."""


def broadcast_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the columns of a recording that hold its requests' inputs; none for any other file."""
    try:
        about = json.loads((schema.metadata or {}).get(METADATA, b"{}"))
        return frozenset(column["name"] for column in about.get("features", ()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return frozenset()


def fill_forward_rows(column: pa.Array) -> np.ndarray:
    """Return the row that supplies each row's value, int64 [n]: itself or, for a null, the last non-null row before."""
    rows = np.arange(len(column))
    if not column.null_count:
        return rows
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(np.maximum.accumulate(np.where(valid, rows, 0)))


def row_nbytes(column: pa.Array) -> np.ndarray:
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


def shared_rows(table: pa.Table, name: str) -> np.ndarray:
    """Return the row that supplies each row's value of a column, int64 [n]."""
    broadcast = name in broadcast_columns(table.schema)
    return fill_forward_rows(table[name].combine_chunks()) if broadcast else np.arange(len(table))


def filled(table: pa.Table, name: str) -> pa.Array:
    """Return a column with the value of every row; for columns that are small in each row."""
    return table[name].combine_chunks().take(pa.array(shared_rows(table, name)))


def once_nbytes(table: pa.Table, rows: np.ndarray) -> int:
    nbytes, columns = 0, broadcast_columns(table.schema)
    for name in table.column_names:
        column = table[name].combine_chunks()
        source, again = _sources(column, rows, name in columns)
        nbytes += int(np.where(again, CELL_NBYTES, row_nbytes(column)[source]).sum())
    return nbytes


def take_once(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return rows of a table in which a row's null in a broadcast column stands for the value of the row before it.

    Args:
        table: Rows of a recording in the same form; the first has all its values.
        rows: Row numbers, int64, in the order of the result.
    """
    columns, arrays = broadcast_columns(table.schema), []
    for name in table.column_names:
        column = table[name].combine_chunks()
        source, again = _sources(column, rows, name in columns)
        arrays.append(column.take(pa.array(source, mask=again)))
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _sources(column: pa.Array, rows: np.ndarray, broadcast: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the row that supplies each row's value, and bool [n]: it is that of the row before."""
    again = np.zeros(len(rows), bool)
    source = np.asarray(rows, np.int64)
    if broadcast:
        source = fill_forward_rows(column)[source]
        again[1:] = source[1:] == source[:-1]
    return source, again


def pick_once(
    batches: Iterable[pa.RecordBatch], columns: frozenset[str], wanted: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Yield rows by ascending numbers, in the form of take_once().

    `batches` are consecutive rows from the beginning of a request, `wanted` counts from their first row.
    """
    # Of each broadcast column the last value, the row that it is from, and the row that supplied the last yielded one.
    last: dict[str, tuple[pa.Array, int]] = {}
    yielded: dict[str, int] = {}
    first = 0
    for batch in batches:
        rows = wanted[(wanted >= first) & (wanted < first + batch.num_rows)] - first
        arrays = []
        for name, column in zip(batch.schema.names, batch.columns):
            if name not in columns or not batch.num_rows:
                arrays.append(column.take(pa.array(rows)))
                continue
            before, at = last.get(name, (pa.nulls(1, column.type), -1))
            values = pa.concat_arrays([before, column])
            origins = fill_forward_rows(values)[1:]
            source = origins[rows]
            numbers = np.where(source > 0, first + source - 1, at)
            again = numbers == np.concatenate([[yielded.get(name, -2)], numbers])[: len(rows)]
            arrays.append(values.take(pa.array(source, mask=again)))
            if len(rows):
                yielded[name] = int(numbers[-1])
            if origins[-1]:
                # Copy: a slice would keep the whole batch in memory.
                last[name] = values.take(pa.array(origins[-1:])), first + int(origins[-1]) - 1
        first += batch.num_rows
        if len(rows):
            yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def weighted_ranges(weights: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges [first, end) of rows that weigh at most `most`, or are a single row."""
    ends, first = np.cumsum(weights), 0
    while first < len(weights):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, end
        first = end
