"""The content of a table that changes at one moment, and which of its keys have changed since an earlier one.

Invariants
- A state never changes. A later one has a mark at least as high.
- A row's mark is that of the state that brought it. changed(mark) has each key whose newest row, or whose absence, is
  of a later mark; any other key is as it was then.
- replaced() keeps the mark of a key whose newest columns are the same.
- Without times a part has each key once.

Two parts, so that few rows cost little: the recent ones and the base. Once the recent ones outweigh an eighth of the
base both become one part, so a row is moved a constant number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.keyed_rows import Float64s, Int64s, KeyedRows, ids_of, join_rows
from freshet_serving.models.data.value_hashes import Hashes, mixed, value_hashes
from freshet_serving.processor.columns import Column, join_columns, take_rows

RECENT_ROWS, RECENT_SHARE = 1024, 8
NEVER, NO_IDS = -np.inf, np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Keys of a table, each once, that have changed, or all of them; `removed` are those that have no row any more."""

    keys: Column
    columns: dict[str, Column]
    removed: Column
    mark: int

    def __bool__(self) -> bool:
        return len(self.keys) + len(self.removed) > 0


@dataclass(frozen=True)
class TableState:
    """Rows of a table at one moment; `mark` is the highest so far."""

    base: KeyedRows
    recent: KeyedRows
    mark: int = 0

    def has(self, keys: Column) -> NDArray[np.bool_]:
        gone = self.base.gone[self.base.newest]
        ids = ids_of(keys)
        present = self.base.ids if not gone.any() else ids_of(take_rows(self.base.keys, self.base.newest[~gone]))
        return np.isin(ids, present) | np.isin(ids, self.recent.ids)

    def columns(self, keys: Column, times: Float64s | None) -> dict[str, Column]:
        """Return the columns of keys; `times` are needed for a table with times."""
        ids = ids_of(keys)
        if not len(self.recent):
            return self.base.take(self.base.rows(ids, times))
        base, recent, newer = self._places(ids, times)
        return self._taken(base, recent, newer)

    def all(self) -> ChangedRows:
        return self._newest(np.union1d(self.base.ids, self.recent.ids), None)

    def changed(self, since: int) -> ChangedRows:
        """Return the keys that have changed since the state of a mark."""
        parts = (self.base, self.recent) if since < self.mark else ()
        ids = [part.ids[part.marks[part.order] > since] for part in parts]
        return self._newest(np.unique(np.concatenate([NO_IDS, *ids])), since)

    def added(self, rows: KeyedRows, mark: int, horizon_s: float = NEVER) -> TableState:
        """Return the state with further rows, of later marks.

        Args:
            mark: The highest of their marks.
            horizon_s: With times, no event before this time needs a row that another has superseded by then.
        """
        recent = _needed(join_rows([self.recent, rows]), horizon_s)
        if len(recent) <= max(RECENT_ROWS, len(self.base) // RECENT_SHARE):
            return TableState(self.base, recent, mark)
        return TableState(_needed(join_rows([self.base, recent]), horizon_s), recent.some(NO_IDS), mark)

    def replaced(self, rows: KeyedRows) -> TableState:
        """Return the state with other rows in the place of all; its mark is higher if a key has changed."""
        was, now = self.base, rows
        mark = self.mark + 1
        ids, old = now.ids_once, was.ids_once
        places = np.minimum(np.searchsorted(old, ids), max(0, len(old) - 1))
        present = old[places] == ids if len(old) else np.zeros(len(ids), np.bool_)
        same = present.copy()
        before = was.newest[places[present]]
        same[present] = ~was.gone[before] & (_hashes(was, before) == _hashes(now, now.newest[present]))
        marks = np.full(len(ids), mark, np.int64)
        marks[same] = was.marks[was.newest[places[same]]]
        absent = was.newest[~np.isin(old, ids)]
        newly = ~was.gone[absent]
        if same.all() and not newly.any():
            mark = self.mark
        by_row = np.empty(len(now), np.int64)
        by_row[now.order] = marks[np.searchsorted(ids, now.ids)]
        left = was.some(absent).as_gone(np.where(newly, mark, was.marks[absent]))
        return TableState(join_rows([now.with_marks(by_row), left]), left.some(NO_IDS), mark)

    def without_gone(self, until: int) -> TableState:
        """Return the state without the keys that were gone by a mark."""
        stays = ~(self.base.gone & (self.base.marks <= until))
        if stays.all():
            return self
        return TableState(self.base.some(np.flatnonzero(stays)), self.recent, self.mark)

    def _newest(self, ids: Int64s, since: int | None) -> ChangedRows:
        times = np.full(len(ids), np.inf)
        base, recent, newer = self._places(ids, times)
        marks = np.append(self.base.marks, 0)[base]
        marks[newer] = self.recent.marks[recent[newer]]
        gone = np.append(self.base.gone, False)[base] & ~newer
        chosen = np.ones(len(ids), np.bool_) if since is None else marks > since
        present, removed = chosen & ~gone, chosen & gone & (since is not None)
        columns = self._taken(base[present], recent[present], newer[present])
        keys = join_columns(
            [take_rows(self.base.keys, base[present & ~newer]), take_rows(self.recent.keys, recent[present & newer])]
        )
        keys = take_rows(keys, _unsplit(newer[present]))
        return ChangedRows(keys, columns, take_rows(self.base.keys, base[removed]), self.mark)

    def _places(self, ids: Int64s, times: Float64s | None) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
        """Return the row of each id in both parts, and whether the recent one counts."""
        base, recent = self.base.rows(ids, times), self.recent.rows(ids, times)
        newer = recent < len(self.recent)
        if self.base.times is not None and self.recent.times is not None and newer.any():
            base_s, recent_s = np.append(self.base.times, NEVER), np.append(self.recent.times, NEVER)
            newer &= recent_s[recent] >= base_s[base]
        return base, recent, newer

    def _taken(self, base: Int64s, recent: Int64s, newer: NDArray[np.bool_]) -> dict[str, Column]:
        if not newer.any():
            return self.base.take(base)
        old, new, order = self.base.take(base[~newer]), self.recent.take(recent[newer]), _unsplit(newer)
        return {name: take_rows(join_columns([column, new[name]]), order) for name, column in old.items()}

    @cached_property
    def nothing(self) -> bool:
        return not len(self.base) and not len(self.recent)


def _unsplit(newer: NDArray[np.bool_]) -> Int64s:
    """Return the places of rows among those that are not newer, followed by those that are."""
    places = np.empty(len(newer), np.int64)
    places[~newer] = np.arange(np.count_nonzero(~newer))
    places[newer] = np.count_nonzero(~newer) + np.arange(np.count_nonzero(newer))
    return places


def _needed(rows: KeyedRows, horizon_s: float) -> KeyedRows:
    """Return rows without those that no event from the horizon on can see."""
    if rows.times is None:
        return rows if not rows.repeated() else rows.some(np.sort(rows.newest))
    if horizon_s == NEVER:
        return rows
    superseded = np.zeros(len(rows), np.bool_)
    superseded[:-1] = (rows.ids[1:] == rows.ids[:-1]) & (rows.times_by_id[1:] <= horizon_s)
    return rows if not superseded.any() else rows.some(np.sort(rows.order[~superseded]))


def _hashes(rows: KeyedRows, places: Int64s) -> Hashes:
    hashes = np.zeros(len(places), np.uint64)
    for column in rows.take(places).values():
        hashes = mixed(hashes + value_hashes(column))
    return hashes
