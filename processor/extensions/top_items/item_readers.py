"""Find the items that read a row: those whose vectors it changes.

An index of pairs (key of a row, item) for each table that is looked up by values of items' records. It only grows: a
pair of a record that has changed since stays, and names an item that does not read the row any more. So touched() may
name too many items, never too few, as long as add() is called with each record that items have had since the index was
new. Costs: 16 bytes a pair; a question is a binary search for each changed key, and a scan of the newest pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.item_tower import ItemTower, RecordLookup

FEWEST_NEW = 1 << 12
PART_NEW = 8
"""New pairs are merged once they are more than FEWEST_NEW and this part of all."""

Int64s = NDArray[np.int64]
NONE: Int64s = np.empty(0, np.int64)


class ReaderPairs:
    def __init__(self) -> None:
        # Ascending by row; new ones in no order.
        self._rows, self._items = NONE, NONE
        self._new: list[tuple[Int64s, Int64s]] = []
        self._count = 0

    @property
    def nbytes(self) -> int:
        return 16 * (len(self._rows) + self._count)

    def add(self, rows: Int64s, items: Int64s) -> None:
        self._new.append((rows, items))
        self._count += len(rows)

    def merge(self) -> None:
        if not self._count:
            return
        rows = np.concatenate([self._rows, *(part for part, _ in self._new)])
        items = np.concatenate([self._items, *(part for _, part in self._new)])
        # Most of it ascends already, which this sort is fast at.
        order = np.argsort(rows, kind="stable")
        self._rows, self._items = rows[order], items[order]
        self._new, self._count = [], 0

    def readers(self, rows: Int64s, most: int) -> Int64s | None:
        """Return the items that read rows, some of them more than once; None if there are more than `most`."""
        if self._count > max(FEWEST_NEW, len(self._rows) // PART_NEW):
            self.merge()
        rows = np.unique(rows)
        first, last = (np.searchsorted(self._rows, rows, side) for side in ("left", "right"))
        counts = last - first
        total = int(counts.sum())
        if total > most:
            return None
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        parts = [self._items[starts + np.arange(total)]]
        parts += [items[np.isin(of, rows)] for of, items in self._new]
        return np.concatenate(parts)


class ItemReaders:
    """The items that read the rows of all tables that vectors depend on."""

    def __init__(self, tower: ItemTower, unknown_keys: Mapping[str, int]) -> None:
        """Start without any pair; `unknown_keys` are those of the row of all keys without one, by table."""
        self._tower, self._unknown = tower, unknown_keys
        self._pairs = {lookup.table: ReaderPairs() for lookup in tower.lookups}

    @property
    def nbytes(self) -> int:
        return sum(pairs.nbytes for pairs in self._pairs.values())

    def add(self, items: Int64s, records: NDArray[np.int32]) -> None:
        """Add the pairs of items, int64 [n], and their records, int32 [n, words]."""
        if len(items):
            for lookup in self._tower.lookups:
                self._pairs[lookup.table].add(*_pairs(lookup, items, records))

    def merge(self) -> None:
        """Sort all pairs in, so that questions are fast."""
        for pairs in self._pairs.values():
            pairs.merge()

    def touched(self, changes: Mapping[str, Sequence[Int64s]], most: int) -> Int64s | None:
        """Return the items that changed rows may change, ascending; None if they are more than `most`, or any."""
        tower, touching = self._tower, [NONE]
        for name, parts in changes.items():
            keys = np.concatenate([NONE, *parts])
            if not len(keys) or name not in tower.tables:
                continue
            if name in tower.spread or (name in self._unknown and (keys == self._unknown[name]).any()):
                return None
            if name == tower.table or name in tower.direct:
                touching.append(keys)
            if name in self._pairs:
                items = self._pairs[name].readers(keys, most)
                if items is None:
                    return None
                touching.append(items)
        touched: Int64s = np.unique(np.concatenate(touching))
        return touched if len(touched) <= most else None


def _pairs(lookup: RecordLookup, items: Int64s, records: NDArray[np.int32]) -> tuple[Int64s, Int64s]:
    """Return the keys that records look up in one table, and the item of each."""
    words = 2 * (lookup.most + lookup.ragged)
    values = np.ascontiguousarray(records[:, lookup.offset : lookup.offset + words]).view(np.int64)
    if not lookup.ragged:
        return values.reshape(-1), np.repeat(items, lookup.most)
    used = np.arange(lookup.most) < values[:, :1]
    return values[:, 1:][used], np.repeat(items, used.sum(1))
