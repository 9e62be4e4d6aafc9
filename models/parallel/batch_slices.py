"""Split a batch between processes: contiguous row ranges whose sizes differ by at most one, possibly empty.

A slice is one message: columns in the order of the model's inputs, labels, and each row's weight in the loss of the
whole batch, so that no process needs the other slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.parallel.ranks import Array, Bytes, packed, unpacked
from freshet_serving.processor.columns import Column, Ragged, Strings, slice_column

Float32s = NDArray[np.float32]

ARRAY, STRINGS, RAGGED, RAGGED_STRINGS = range(4)


def slice_of(rows: int, process: int, processes: int) -> tuple[int, int]:
    """Return (start, stop) of a process's rows."""
    return rows * process // processes, rows * (process + 1) // processes


def encoded(
    columns: Mapping[str, Column], names: Sequence[str], label: Float32s, share: Float32s, start: int, stop: int
) -> Bytes:
    """Encode rows [start, stop) of a batch as one message, with the columns in the order of `names`.

    `share` is each row's weight in the loss of the whole batch.
    """
    kinds, arrays = [], []
    for name in names:
        kind, parts = _taken_apart(slice_column(columns[name], start, stop))
        kinds.append(kind)
        arrays += parts
    return packed([np.array(kinds, np.int64), label[start:stop], share[start:stop], *arrays])


def decoded(message: Bytes, names: Sequence[str]) -> tuple[dict[str, Column], Float32s, Float32s]:
    """Return columns by name, labels and shares of a message of encoded(), as views of it."""
    kinds, label, share, *arrays = unpacked(message)
    left = iter(arrays)
    columns = {name: _put_together(kind, left) for name, kind in zip(names, kinds.tolist())}
    return columns, label, share


def _taken_apart(column: Column) -> tuple[int, list[Array]]:
    if isinstance(column, Strings):
        return STRINGS, _strings(column)
    if isinstance(column, Ragged):
        if isinstance(column.values, Strings):
            return RAGGED_STRINGS, [column.row_splits, *_strings(column.values)]
        return RAGGED, [column.row_splits, column.values]
    return ARRAY, [column]


def _strings(column: Strings) -> list[Array]:
    """Return offsets and data, without bytes of a larger buffer outside this column."""
    first, last = int(column.offsets[0]), int(column.offsets[-1])
    return [column.offsets - first, column.data[first:last]]


def _put_together(kind: int, arrays: Iterator[Any]) -> Column:
    if kind == ARRAY:
        column: Column = next(arrays)
        return column
    splits = next(arrays)
    if kind == STRINGS:
        return Strings(next(arrays), splits)
    if kind == RAGGED:
        return Ragged(next(arrays), splits)
    offsets = next(arrays)
    return Ragged(Strings(next(arrays), offsets), splits)
