"""Keep what ranks items for everybody beside a model in training: when an item was first seen, and how popular it is.

The numbers are rows of a table of their own, which no feature reads (NAME): the time and, for networks whose rows have
none (models.training.item_counts), the popularity. So what publishes, restores, undoes or rolls back rows does it to
them. Servers scan them (processor.extensions.top_items.item_sources).

Invariants
- An item was first seen at the time of its earliest event or, without one, at that of the newest event when its record
  was first there. No clock is read: the numbers follow from the log, so a run that follows it has those of one that
  reads it at once.
- Only events that are learned, or counted before that, say anything. Taking them in again changes no time.
- Popularity is counted as that of next-item networks is, on the same clock.
- Hours are counted from the earliest event of the full version, in units of UNIT_HOURS, and from 1: then both numbers
  of a row are of one size, which their codes need (row_codes has one scale a row), and a new item's row is not many
  times as long as any before, by which the guard knows broken deltas. A float32 tells a quarter of a minute apart for 7
  years after the origin, and a minute for 29.
- Popularity grows by log 2 each half-life, and has three decimals for 10,000 of them. Even the shortest one is 1/64 of
  the full version's rows, so these are the rows of 156 full versions.

Costs: a lookup for each event, and for each record before a publication.

Rejected: a number more in the rows of next-item networks (their codes have one scale for it and the learned numbers,
and rows of older versions have no place for it).
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
"""The layout of a row that begins with the popularity."""

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


def with_sources(manifest: Manifest, item: Feature, columns: int) -> tuple[Manifest, str]:
    """Return the manifest with a table for the numbers of its items, and the table's name.

    Args:
        item: The feature that looks up an item.
        columns: Numbers of a row.
    """
    name, taken = NAME, {t.name for t in manifest.tables}
    while name in taken:
        name += "_"
    entry = TableEntry(name, columns, 0, "float32", hash_seed=manifest.table(item.table).hash_seed)
    return replace(manifest, tables=[*manifest.tables, entry]), name


class ItemSources:
    """The numbers of a model's items.

    Attributes:
        counts: Counts the popularity; None where the items' own rows have it.
        origin_s: Unix seconds that hours are counted from; None without an event that has a time.
        newest_s: Time of the newest event.
    """

    def __init__(self, table: EmbeddingVariable, seed: int, counted: bool) -> None:
        """Have no event.

        Args:
            table: The table, of one number a row, or two if popularity is counted.
            seed: Seed of hashes of ids that are strings.
            counted: Whether popularity is counted.
        """
        self.table, self._seed = table, seed
        self.counts = ItemCounts(table, POPULARITY) if counted else None
        self.origin_s: float | None = None
        self.newest_s = 0.0

    def keys_of(self, ids: Column) -> Int64s:
        """Return the keys of ids as the data have them, int64 [n]."""
        return hash_strings(ids, self._seed) if isinstance(ids, Strings) else np.asarray(ids, np.int64)

    def count_log(self, keys: Int64s, rows: Int64s, until: int) -> None:
        """Count the events of a pass, in place of those before.

        Args:
            keys: int64 [n], their items.
            rows: int64 [n], their rows in the log.
            until: Row after the last one.
        """
        if self.counts is not None:
            self.counts.count_log(keys, np.zeros(len(keys), np.bool_), rows, until)

    def count(self, keys: Int64s, first_row: int) -> None:
        """Count events.

        Args:
            keys: int64 [n], their items.
            first_row: Row of the log that they count as.
        """
        if self.counts is None or not len(keys):
            return
        refs = self.table.insert(keys)
        self.counts.count_events(refs, np.array([0, len(keys)]), np.array([len(keys)]), first_row)
        self.table.touch(np.unique(refs))

    def see(self, keys: Int64s, times: Float64s | None) -> None:
        """Take in the times of events; before they are counted.

        Args:
            keys: int64 [n], their items.
            times: float64 [n], Unix seconds, NaN for none; None for a log without times.
        """
        if times is None:
            return
        known = np.isfinite(times)
        keys, times = keys[known], times[known]
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
        """Take in items that have a record; those without an event are as old as the newest one is now.

        Args:
            keys: int64 [n], keys of the records.
        """
        if self.origin_s is None or not len(keys):
            return
        missing = np.unique(keys[self.table.find(keys) < 0])
        if len(missing):
            refs = self.table.insert(missing)
            self.table.rows[refs, -1] = self._numbers(np.array([self.newest_s]))[0]
            self.table.touch(refs)

    def keep(self, items: EmbeddingVariable, described: Int64s) -> None:
        """Remove the numbers of items that have neither a row nor a record.

        Args:
            items: The items' rows.
            described: int64 [n], keys of the records.
        """
        keys = self.table.export().keys
        gone = keys[(items.find(keys) < 0) & ~np.isin(keys, described)]
        self.table.remove(gone)

    def saved(self) -> dict[str, Any]:
        """Return what restore() takes, beside the table."""
        return {} if self.origin_s is None else {"origin_s": self.origin_s, "newest_s": self.newest_s}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take in what saved() has returned; {} for nothing."""
        if saved:
            self.origin_s, self.newest_s = float(saved["origin_s"]), float(saved["newest_s"])

    def noted(self, manifest: Manifest, popularity: Mapping[str, Any] | None = None) -> Manifest:
        """Return a manifest whose notes name the sources that there are.

        Args:
            manifest: The manifest of a model that ranks items.
            popularity: The entry of the popularity that items' own rows have; None without it.
        """
        name, new = self.table.name, None
        if self.counts is not None:
            popularity = source_entry(name, POPULARITY.dim, SCALE, -LOG_FLOOR)
        if self.origin_s is not None:
            new = source_entry(name, self.table.dim - 1, UNIT_HOURS, -UNIT_HOURS, self.origin_s)
        return replace(manifest, notes=with_sources_note(manifest.notes, popularity, new))

    def _numbers(self, times: Float64s) -> NDArray[np.float32]:
        assert self.origin_s is not None, "an event has a time"
        return np.asarray(1 + (times - self.origin_s) / (HOUR_S * UNIT_HOURS), np.float32)
