"""Rows of a table in memory, found by key and, where they have times, as of a time.

A key's row is its last one; with times, its last one at or before the requested time. A row may be gone: its key has
none from then on. Each row has a mark, a number that grows with later rows: a reader finds what changed since it
last looked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.source import Field
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows
from freshet_serving.processor.kernels.hashing import hash_strings

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class KeyedRows:
    """Rows in the order in which they came. Never changes.

    Attributes:
        ids: The keys as int64 [n], ascending.
        order: int64 [n], the row of each id; of one key by time and then as they came.
        times: float64 [n], Unix seconds by row; None for a table without times.
        marks: int64 [n], by row; by default 0.
        gone: bool [n], by row; by default none.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        keys: Column,
        columns: Mapping[str, Column],
        times: Float64s | None = None,
        marks: Int64s | None = None,
        gone: NDArray[np.bool_] | None = None,
    ) -> None:
        """Sort rows by key; `columns` include those of `fields`."""
        self.fields, self.keys, self.times = tuple(fields), keys, times
        ids = ids_of(keys)
        self.order = np.argsort(ids, kind="stable") if times is None else np.lexsort((times, ids))
        self.ids = ids[self.order]
        self.marks = np.zeros(len(ids), np.int64) if marks is None else marks
        self.gone = np.zeros(len(ids), np.bool_) if gone is None else gone
        # The last row, of missing values, is that of a key without one.
        self._columns = {f.name: join_columns([columns[f.name], missing_values(f)]) for f in fields}

    @classmethod
    def none(cls, key: Field, fields: Sequence[Field], timed: bool) -> KeyedRows:
        """Return no rows of a table; `timed` says whether it has times."""
        empty = np.empty(0, np.int64)
        columns = {f.name: take_rows(missing_values(f), empty) for f in (key, *fields)}
        return cls(fields, columns[key.name], columns, np.empty(0) if timed else None)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def newest(self) -> Int64s:
        """The newest row of each key, by ascending id."""
        return self.order[np.flatnonzero(np.append(self.ids[1:] != self.ids[:-1], True)[: len(self)])]

    @property
    def ids_once(self) -> Int64s:
        """Each id once, ascending, as `newest` has them."""
        once: Int64s = self.ids[np.append(self.ids[1:] != self.ids[:-1], True)[: len(self)]]
        return once

    def repeated(self) -> int:
        return len(self) - len(self.newest)

    def rows(self, ids: Int64s, times: Float64s | None) -> Int64s:
        """Return the row of each key, int64 [m], as of the times if rows have any; len(self) for a key without one."""
        low = np.searchsorted(self.ids, ids, "left")
        high = np.searchsorted(self.ids, ids, "right")
        first = low.copy()
        if self.times is not None:
            assert times is not None
            by_id = self.times_by_id
            # The number of a key's rows at or before the time, by bisection of its part of the table.
            while (open_ := low < high).any():
                middle = np.where(open_, (low + high) // 2, 0)
                before = open_ & (by_id[middle] <= times)
                low = np.where(before, middle + 1, low)
                high = np.where(open_ & ~before, middle, high)
        result = np.full(len(ids), len(self), np.int64)
        present = high > first
        result[present] = self.order[high[present] - 1]
        return result

    @cached_property
    def times_by_id(self) -> Float64s:
        assert self.times is not None
        return self.times[self.order]

    def take(self, rows: Int64s) -> dict[str, Column]:
        """Return the columns of rows, of missing values for len(self)."""
        return {name: take_rows(column, rows) for name, column in self._columns.items()}

    def some(self, rows: Int64s) -> KeyedRows:
        times = None if self.times is None else self.times[rows]
        return KeyedRows(
            self.fields, take_rows(self.keys, rows), self.take(rows), times, self.marks[rows], self.gone[rows]
        )

    def with_marks(self, marks: Int64s) -> KeyedRows:
        """Return the same rows with other marks, int64 [n]."""
        marked = copy(self)
        marked.marks = marks
        return marked

    def as_gone(self, marks: Int64s) -> KeyedRows:
        """Return rows, with these marks, that say that their keys have none, at any time."""
        rows = np.full(len(self), len(self))
        times = None if self.times is None else np.full(len(self), -np.inf)
        return KeyedRows(self.fields, self.keys, self.take(rows), times, marks, np.ones(len(self), np.bool_))


def join_rows(parts: Sequence[KeyedRows]) -> KeyedRows:
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    columns = [part.take(np.arange(len(part))) for part in parts]
    times = [part.times for part in parts if part.times is not None]
    return KeyedRows(
        parts[0].fields,
        join_columns([part.keys for part in parts]),
        {name: join_columns([c[name] for c in columns]) for name in columns[0]},
        np.concatenate(times) if times else None,
        np.concatenate([part.marks for part in parts]),
        np.concatenate([part.gone for part in parts]),
    )


def ids_of(keys: Column) -> Int64s:
    """Return keys as int64; strings by their hash without a seed."""
    if isinstance(keys, Strings):
        hashed: Int64s = hash_strings(keys, 0)
        return hashed
    assert isinstance(keys, np.ndarray)
    return np.ascontiguousarray(keys, np.int64)


def missing_values(field: Field) -> Column:
    """Return one row of a column that has no value, as processor.features.entity_records has it."""
    if field.kind == "ids":
        return Ragged(np.empty(0, np.int64), np.zeros(2, np.int64))
    if field.kind == "strings":
        return Ragged(Strings.of([]), np.zeros(2, np.int64))
    if field.kind == "string":
        return Strings.of([""])
    return np.full(1, np.nan, np.float32) if field.kind == "float" else np.zeros(1, np.int64)
