"""Rows of columns by int64 id: flat arrays that double when full, an index, and what has changed.

One owner, the trainer's thread. The index is the one that serving uses (processor.kernels.index). A removed id's place
is used again. Whoever puts an id in gives its columns their first values.
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

Column = tuple[tuple[int, ...], Any]
"""Shape of one row's part, and dtype."""


class IdRows:
    """Columns by id. columns: arrays [_, ...] by row number; marks: bool [_], rows that count as changed. They are
    other arrays once the table has grown."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._kinds = dict(columns)
        self.clear()

    def clear(self) -> None:
        """Gives up every row, without a trace."""
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

    def find(self, ids: Int64s) -> Int64s:
        """Row numbers of `ids`, negative where an id has none."""
        refs = np.empty(len(ids), np.int64)
        hash_index.find(self.index.ctypes.data, len(self.index), ids, refs)
        return refs

    def put(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Gives each of `ids` that has none a row of zeros. Their numbers, in their order, and those that are new."""
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
        """Gives up the rows of `ids`; returns how many there were."""
        refs = self.find(ids)
        gone = np.unique(refs[refs >= 0])
        self._unlink(self.keys[gone])
        self.marks[gone] = False
        self._free.extend(gone.tolist())
        return len(gone)

    def touch(self, refs: Int64s) -> None:
        """Counts rows as changed."""
        self.marks[refs] = True

    def fetch(self, ids: Int64s) -> Int64s:
        """Row numbers of `ids`, of rows that can be written to; negative where an id has none."""
        return self.find(ids)

    def gather(self, refs: Int64s, *names: str) -> list[NDArray[Any]]:
        """Copies of rows' parts: of the columns so named, or "keys"."""
        return [(self.keys if name == "keys" else self.columns[name])[refs] for name in names]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Room for a copy of a column."""
        return np.empty(shape, dtype)

    def shrink_to_budget(self) -> None:
        """Gives up the memory that rows have taken beyond what they may; none of their numbers is good any longer."""

    def present(self) -> Int64s:
        """Numbers of all rows, as they lie."""
        refs = np.ones(self._bump, np.bool_)
        refs[self._free] = False
        return np.flatnonzero(refs)

    def live(self) -> Int64s:
        """Numbers of all rows, by ascending id."""
        return self._by_id(self.present())

    def changed(self) -> Int64s:
        """Numbers of the rows that have changed since clear_changed(), by ascending id."""
        return self._by_id(np.flatnonzero(self.marks[: self._bump]))

    def removed(self) -> Int64s:
        """Ids that were removed since clear_changed() and are not back, ascending."""
        return np.array(sorted(self._removed), np.int64)

    def clear_changed(self) -> None:
        self.marks[:] = False
        self._removed.clear()

    def mark(self, keys: Int64s, removed: Int64s) -> None:
        """Counts these as changed and removed once more."""
        self.touch(self.find(keys))
        self._removed.update(removed.tolist())

    def _by_id(self, refs: Int64s) -> Int64s:
        return refs[np.argsort(self.gather(refs, "keys")[0])]

    def _next_numbers(self, count: int) -> Int64s:
        """The numbers that so many rows more would have: the last that were given up, then fresh ones."""
        recycled = self._free[: -count - 1 : -1]
        self._grow(self._bump + count - len(recycled))
        fresh = np.arange(self._bump, self._bump + count - len(recycled))
        return np.concatenate([np.array(recycled, np.int64), fresh]) if recycled else fresh

    def _take(self, count: int) -> list[int]:
        """Takes the first so many of _next_numbers(); those of them that were given up once."""
        recycled = self._free[len(self._free) - min(count, len(self._free)) :]
        del self._free[len(self._free) - len(recycled) :]
        self._bump += count - len(recycled)
        return recycled

    def _unlink(self, ids: Int64s) -> None:
        """Notes ids as removed: they have no row."""
        self._point(ids, hash_index.ABSENT)
        self._removed.update(ids.tolist())

    def _point(self, ids: Int64s, refs: Int64s | int) -> None:
        """Has the index say where the rows of `ids`, which it knows, are."""
        self.index[self._entries(ids), 1] = refs

    def _entries(self, ids: Int64s) -> Int64s:
        entries = np.empty(len(ids), np.int64)
        self._used += hash_index.claim(self.index.ctypes.data, len(self.index), ids, entries)
        return entries

    def _rehash(self, more: int) -> None:
        """Drops the entries of removed ids; sized by the rows there are, and so many more, so that churn alone never
        grows the index."""
        grown = hash_index.empty_index(hash_index.capacity_for(max(FIRST_ROWS, 2 * (len(self) + more))))
        source = self.index.ctypes.data
        self._used = hash_index.rehash(source, len(self.index), grown.ctypes.data, len(grown))
        self.index = grown

    def _size_for(self, rows: int) -> int:
        """Of the columns, once they are to hold so many rows."""
        return len(self.keys) << math.ceil(math.log2(rows / len(self.keys)))

    def _grow(self, rows: int) -> None:
        if rows <= len(self.keys):
            return
        size = self._size_for(rows)
        self.keys, self.marks = longer(self.keys, size), longer(self.marks, size)
        self.columns = {name: longer(column, size) for name, column in self.columns.items()}


def longer(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """A copy with room for so many rows, zeros after its own."""
    new = np.zeros((rows, *column.shape[1:]), column.dtype)
    new[: len(column)] = column
    return new
