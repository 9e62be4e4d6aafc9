"""Store rows of columns by int64 id: flat arrays that double when full, serving's index, and change tracking.

Owned by one thread, the trainer's. Places of removed ids are reused. The caller that adds an id sets its first values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding import kernels
from freshet_serving.processor.kernels import index as hash_index

Int64s = NDArray[np.int64]

FIRST_ROWS = 1024
ENTRY_NBYTES = 16
"""Bytes of an index entry."""

Column = tuple[tuple[int, ...], Any]
"""Shape of one row's part, and its dtype."""


class IdRows:
    """Columns [_, ...], keys [_] and marks of changed rows [_] by row number; replaced when the table grows."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._kinds = dict(columns)
        self.clear()

    def clear(self) -> None:
        """Remove every row and all change tracking."""
        self.index = hash_index.empty_index(hash_index.capacity_for(FIRST_ROWS))
        self._used = 0
        self.keys = np.zeros(FIRST_ROWS, np.int64)
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros((FIRST_ROWS, *shape), dtype) for name, (shape, dtype) in self._kinds.items()
        }
        self.marks = np.zeros(FIRST_ROWS, np.bool_)
        self._bump = 0
        self._free: list[int] = []
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return self._bump - len(self._free)

    def nbytes_with(self, more: int) -> int:
        """Return the most bytes that put() of so many ids takes, with copies if the table grows."""
        arrays = [self.keys, self.marks, *self.columns.values()]
        rows, index = sum(array.nbytes for array in arrays), self.index.nbytes
        copied = 0
        if self._bump + more > len(self.keys):
            copied = max(array.nbytes for array in arrays)
            rows = rows // len(self.keys) * self._size_for(self._bump + more)
        if (self._used + more) * 8 > len(self.index) * 7:
            copied = max(copied, index)
            index = ENTRY_NBYTES * hash_index.capacity_for(max(FIRST_ROWS, 2 * (len(self) + more)))
        return rows + index + copied

    def find(self, ids: Int64s) -> Int64s:
        """Return the row numbers of `ids`, negative for ids without a row."""
        refs = np.empty(len(ids), np.int64)
        hash_index.find(self.index.ctypes.data, len(self.index), ids, refs)
        return refs

    def put(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Give each of `ids` without a row one of zeros; return all row numbers, in order, and the new ones."""
        numbers = self._next_numbers(len(ids))
        if (self._used + len(ids)) * 8 > len(self.index) * 7:
            self._rehash(len(ids))
        refs = np.empty(len(ids), np.int64)
        taken, claimed = kernels.give_rows(self.index.ctypes.data, len(self.index), ids, numbers, self.keys, refs)
        self._used += claimed
        new = numbers[:taken]
        if recycled := self._take(taken):
            for column in self.columns.values():
                column[recycled] = 0
        self.marks[new] = True
        if self._removed:
            self._removed.difference_update(self.keys[new].tolist())
        return refs, new

    def remove(self, ids: Int64s) -> int:
        """Remove the rows of `ids`; return their number."""
        refs = self.find(ids)
        gone = np.unique(refs[refs >= 0])
        self._unlink(self.keys[gone])
        self.marks[gone] = False
        self._free.extend(gone.tolist())
        return len(gone)

    def touch(self, refs: Int64s) -> None:
        self.marks[refs] = True

    def fetch(self, ids: Int64s) -> Int64s:
        """Return the numbers of writable rows of `ids`, negative for ids without a row."""
        return self.find(ids)

    def gather(self, refs: Int64s, *names: str) -> list[NDArray[Any]]:
        """Return copies of columns (or "keys") of rows."""
        return [(self.keys if name == "keys" else self.columns[name])[refs] for name in names]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Allocate a copy of a column."""
        return np.empty(shape, dtype)

    def shrink_to_budget(self) -> None:
        """Free memory of rows beyond the budget; row numbers become invalid."""

    def present(self) -> Int64s:
        refs = np.ones(self._bump, np.bool_)
        refs[self._free] = False
        return np.flatnonzero(refs)

    def live(self) -> Int64s:
        return self._by_id(self.present())

    def changed(self) -> Int64s:
        """Return the numbers of rows that have changed since clear_changed(), by ascending id."""
        return self._by_id(np.flatnonzero(self.marks[: self._bump]))

    def removed(self) -> Int64s:
        """Return the ids removed since clear_changed() and not added again, ascending."""
        return np.array(sorted(self._removed), np.int64)

    def clear_changed(self) -> None:
        self.marks[:] = False
        self._removed.clear()

    def mark(self, keys: Int64s, removed: Int64s) -> None:
        """Mark ids as changed and removed again."""
        self.touch(self.find(keys))
        self._removed.update(removed.tolist())

    def _by_id(self, refs: Int64s) -> Int64s:
        return refs[np.argsort(self.gather(refs, "keys")[0])]

    def _next_numbers(self, count: int) -> Int64s:
        """Return the numbers that `count` additional rows would get: the last freed ones, then fresh ones."""
        recycled = self._free[: -count - 1 : -1]
        self._grow(self._bump + count - len(recycled))
        fresh = np.arange(self._bump, self._bump + count - len(recycled))
        return np.concatenate([np.array(recycled, np.int64), fresh]) if recycled else fresh

    def _take(self, count: int) -> list[int]:
        """Allocate the first `count` of _next_numbers(); return those recycled."""
        recycled = self._free[len(self._free) - min(count, len(self._free)) :]
        del self._free[len(self._free) - len(recycled) :]
        self._bump += count - len(recycled)
        return recycled

    def _unlink(self, ids: Int64s) -> None:
        """Mark ids as removed in the index."""
        self._point(ids, hash_index.ABSENT)
        self._removed.update(ids.tolist())

    def _point(self, ids: Int64s, refs: Int64s | int) -> None:
        """Set the row numbers of `ids`, which are in the index."""
        self.index[self._entries(ids), 1] = refs

    def _entries(self, ids: Int64s) -> Int64s:
        entries = np.empty(len(ids), np.int64)
        self._used += hash_index.claim(self.index.ctypes.data, len(self.index), ids, entries)
        return entries

    def _rehash(self, more: int) -> None:
        """Drop the index entries of removed ids; the size depends on the number of rows, so churn never grows it."""
        grown = hash_index.empty_index(hash_index.capacity_for(max(FIRST_ROWS, 2 * (len(self) + more))))
        source = self.index.ctypes.data
        self._used = hash_index.rehash(source, len(self.index), grown.ctypes.data, len(grown))
        self.index = grown

    def _size_for(self, rows: int) -> int:
        """Return the size of the columns for so many rows."""
        return len(self.keys) << math.ceil(math.log2(rows / len(self.keys)))

    def _grow(self, rows: int) -> None:
        if rows <= len(self.keys):
            return
        size = self._size_for(rows)
        self.keys, self.marks = longer(self.keys, size), longer(self.marks, size)
        for name in self.columns:
            self.columns[name] = longer(self.columns[name], size)


def longer(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return a copy with so many rows, the new ones zero."""
    new = np.zeros((rows, *column.shape[1:]), column.dtype)
    new[: len(column)] = column
    return new
