"""Find long lists that neighbouring rows of a batch share: a step looks them up, pools them and moves them once.

A list that a request sent once is in each of its rows when training reads a recording: 15,000 tags for 50,000
candidates are 750 million ids. Such a list is bound in its first row and empty in the others, which get copies of that
row's pooled columns; it gets the sum of their gradients. The result is the same up to rounding. Short lists stay exact.

Not shared: lists that transforms or sequences read, and those of tables that count ids before admitting them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.training.batch_part import GradientPiece, Rows, Write
from freshet_serving.processor.backends import MATRIX
from freshet_serving.processor.columns import Column, Ragged, Strings, take_rows
from freshet_serving.processor.package import Feature, Manifest

LEAST_VALUES, LEAST_LENGTH = 1 << 18, 64
"""Minimum of values of a column, and of a row, for comparing neighbours to pay."""

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]
FirstRows = Mapping[str, Int64s]
"""By input with shared lists, the row that holds each row's list, int64 [rows]."""


class ListSharing:
    """Shares the lists of one model's batches."""

    def __init__(self, manifest: Manifest, counting: Collection[str]) -> None:
        """Find the inputs whose lists may be shared: not those of the tables `counting` ids before admitting them."""
        elsewhere = {name for t in manifest.transforms for name in t.inputs}
        elsewhere |= {name for s in manifest.sequences for name in s.inputs}
        elsewhere |= {f.input for f in manifest.lookups if not f.table or f.table in counting}
        lists = {i.name for i in manifest.inputs if i.ragged} - elsewhere
        self._features = [f for f in manifest.features if f.input in lists]
        self._width = manifest.width

    def shared(self, columns: Mapping[str, Column]) -> tuple[Mapping[str, Column], FirstRows]:
        """Return a batch's columns with each shared list in its first row alone, and these rows."""
        result, firsts = dict(columns), {}
        for name in {f.input for f in self._features}:
            column = columns[name]
            if not isinstance(column, Ragged) or len(column.values) < max(LEAST_VALUES, LEAST_LENGTH * len(column)):
                continue
            first = _first_rows(column)
            holders = np.flatnonzero(first == np.arange(len(first)))
            if 2 * len(holders) <= len(first):
                lengths = np.zeros(len(first), np.int64)
                lengths[holders] = np.diff(column.row_splits)[holders]
                splits = np.concatenate([[0], np.cumsum(lengths)])
                result[name], firsts[name] = Ragged(take_rows(column, holders).values, splits), first
        return result, firsts

    def spread(self, write: Write, firsts: FirstRows) -> Write:
        """Return a function that writes rows with what they share; `firsts` is from shared()."""

        def write_all(rows: Rows, inputs: Mapping[str, Float32s]) -> None:
            write(rows, inputs)
            if MATRIX not in inputs:
                return
            for name, first in firsts.items():
                sources, places = np.unique(first[rows], return_inverse=True)
                pooled = np.empty((len(sources), self._width), np.float32)
                write(sources, {MATRIX: pooled})
                for f in self._features:
                    if f.input == name:
                        span = slice(f.offset, f.offset + f.width)
                        inputs[MATRIX][:, span] = pooled[places, span]

        return write_all if firsts else write

    @staticmethod
    def summed(f: Feature, piece: GradientPiece, first: Int64s) -> tuple[Float32s, Int64s, Int64s]:
        """Return a feature's gradients [lists, width] by list, the row that holds each, and how many rows have it."""
        lists, starts, times = np.unique(first[piece.start : piece.stop], return_index=True, return_counts=True)
        grad = piece.by_inputs[MATRIX][:, f.offset : f.offset + f.width]
        return np.add.reduceat(grad, starts, axis=0), lists, times


def _first_rows(column: Ragged) -> Int64s:
    """Return for each row the first of the preceding neighbours with the same list, or the row itself."""
    ends = column.row_splits.tolist()
    same = [False] + [
        b - a == c - b and _equal(column.values, a, b, b - a) for a, b, c in zip(ends, ends[1:], ends[2:])
    ]
    rows = np.arange(len(column))
    return np.asarray(np.maximum.accumulate(np.where(same, 0, rows)))


def _equal(values: Any, first: int, second: int, count: int) -> bool:
    if not isinstance(values, Strings):
        return np.array_equal(values[first : first + count], values[second : second + count])
    first_ends, second_ends = values.offsets[first : first + count + 1], values.offsets[second : second + count + 1]
    if not np.array_equal(first_ends - first_ends[0], second_ends - second_ends[0]):
        return False
    return np.array_equal(values.data[first_ends[0] : first_ends[-1]], values.data[second_ends[0] : second_ends[-1]])
