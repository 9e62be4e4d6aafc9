"""Keep what ranks items for everybody beside a model in training: when an item was first seen, and how popular it is.

The numbers are rows of a table that no feature reads (NAME): the time and, unless the items' rows have it
(models.training.item_counts), the popularity. So they are published, restored, undone and rolled back like other rows.
Servers scan them (processor.extensions.top_items.item_sources).

Invariants
- An item was first seen at its earliest event or, without one, at the newest event when its record first appeared. No
  clock is read: the numbers follow from the log, for a run that follows it as for one that reads it at once.
- Only events that are learned, or counted before that, count. Repeating them changes no time.
- Popularity is counted as that of next-item networks, on the same clock.
- Hours are counted from the earliest event of the full version, in units of UNIT_HOURS, and from 1: so both numbers of
  a row have similar size, which row_codes with one scale a row needs, and a new item's row is not many times as long as
  any before, by which the guard recognises broken deltas. A float32 resolves a quarter of a minute for 7 years after
  the origin, a minute for 29.
- Popularity grows by log 2 each half-life, and has three decimals for 10,000 of them, at least 156 full versions.

Costs: a lookup for each event, and for each record before a publication.

Rejected: another number in the rows of next-item networks: their codes have one scale for all numbers, and rows of
older versions have no place for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.variable import EmbeddingVariable
from freshet_serving.models.training.item_counts import ItemCounts
from freshet_serving.processor.columns import Column, Strings
from freshet_serving.processor.extensions.top_items.section import source_entry, with_sources_note
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Feature, Manifest, TableEntry
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE, ItemRows

NAME = "item_sources"
HOUR_S, UNIT_HOURS = 3600.0, 4096.0
POPULARITY = ItemRows(1, True, 0)

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


def with_sources(manifest: Manifest, item: Feature, columns: int) -> tuple[Manifest, str]:
    """Return the manifest with a table of `columns` numbers for each item, and the table's name."""
    name, taken = NAME, {t.name for t in manifest.tables}
    while name in taken:
        name += "_"
    entry = TableEntry(name, columns, 0, "float32", hash_seed=manifest.table(item.table).hash_seed)
    return replace(manifest, tables=[*manifest.tables, entry]), name


class ItemSources:
    """The numbers of a model's items; `counts` is None if the items' own rows have the popularity.

    Hours are counted from `origin_s`, Unix seconds, None without an event that has a time.
    """

    def __init__(self, table: EmbeddingVariable, seed: int, counted: bool) -> None:
        """Start without events in a table of one number a row, or two if popularity is `counted`."""
        self.table, self._seed = table, seed
        self.counts = ItemCounts(table, POPULARITY) if counted else None
        self.origin_s: float | None = None
        self.newest_s = 0.0

    def keys_of(self, ids: Column) -> Int64s:
        """Return the keys of ids, int64 [n]."""
        return hash_strings(ids, self._seed) if isinstance(ids, Strings) else np.asarray(ids, np.int64)

    def count_log(self, keys: Int64s, rows: Int64s, until: int) -> None:
        """Count the events of a pass from zero: their items' keys, int64 [n], and their rows in the log."""
        if self.counts is not None:
            self.counts.count_log(keys, np.zeros(len(keys), np.bool_), rows, until)

    def count(self, keys: Int64s, first_row: int) -> None:
        """Count events of items, int64 [n], as those of row `first_row` of the log."""
        if self.counts is None or not len(keys):
            return
        refs = self.table.insert(keys)
        self.counts.count_events(refs, np.array([0, len(keys)]), np.array([len(keys)]), first_row)
        self.table.touch(np.unique(refs))

    def see(self, keys: Int64s, times: Float64s | None) -> None:
        """Take in the times [n] of items' events before they are counted: Unix seconds, NaN or None for none."""
        if times is None:
            return
        timed = np.isfinite(times)
        keys, times = keys[timed], times[timed]
        if not len(keys):
            return
        if self.origin_s is None:
            self.origin_s = self.newest_s = float(times.min())
        self.newest_s = max(self.newest_s, float(times.max()))
        order = np.argsort(keys, kind="stable")
        items, firsts = np.unique(keys[order], return_index=True)
        numbers = self._numbers(np.minimum.reduceat(times[order], firsts))
        new = self.table.find(items) < 0
        refs = self.table.insert(items)
        earlier = new | (numbers < self.table.rows[refs, -1])
        self.table.rows[refs[earlier], -1] = numbers[earlier]
        self.table.touch(refs[earlier])

    def describe(self, keys: Int64s) -> None:
        """Take in items that have records; those without an event are as old as the newest one."""
        if self.origin_s is None or not len(keys):
            return
        missing = np.unique(keys[self.table.find(keys) < 0])
        if len(missing):
            refs = self.table.insert(missing)
            self.table.rows[refs, -1] = self._numbers(np.array([self.newest_s]))[0]
            self.table.touch(refs)

    def keep(self, items: EmbeddingVariable, described: Int64s) -> None:
        """Remove the numbers of items that have neither a row nor a record (`described`)."""
        keys = self.table.export().keys
        gone = keys[(items.find(keys) < 0) & ~np.isin(keys, described)]
        self.table.remove(gone)

    def saved(self) -> dict[str, Any]:
        """Return what restore() takes, without the table."""
        return {} if self.origin_s is None else {"origin_s": self.origin_s, "newest_s": self.newest_s}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved:
            self.origin_s, self.newest_s = float(saved["origin_s"]), float(saved["newest_s"])

    def noted(self, manifest: Manifest, popularity: Mapping[str, Any] | None = None) -> Manifest:
        """Return a manifest whose notes name the sources; `popularity` is the entry of items' own rows, if any."""
        name, new = self.table.name, None
        if self.counts is not None:
            popularity = source_entry(name, POPULARITY.dim, SCALE, -LOG_FLOOR)
        if self.origin_s is not None:
            new = source_entry(name, self.table.dim - 1, UNIT_HOURS, -UNIT_HOURS, self.origin_s)
        return replace(manifest, notes=with_sources_note(manifest.notes, popularity, new))

    def _numbers(self, times: Float64s) -> NDArray[np.float32]:
        assert self.origin_s is not None, "an event has a time"
        return np.asarray(1 + (times - self.origin_s) / (HOUR_S * UNIT_HOURS), np.float32)
