"""The items of a run that were chosen last: their columns, and how often each is chosen.

Two things are read from it: items to compare users with beside those of a batch, and every item's share of the events,
by which the softmax over some items is corrected to one over all (models.training.retrieval_functions).

Invariants
- The items are the `most` that were chosen last; of those chosen in one batch, the higher keys stay. This holds after
  each batch and after each restore, so a resumed run goes on with the same items.
- An item's columns are those of its newest row.
- An item's count is exact but for its age: an event counts half after HALF_LIFE events. An item that left and comes
  again begins anew.
- Costs: a batch costs its own rows (columns are copied NEWER times on average), and one pass over the keys where it has
  new items. A checkpoint costs the items that were chosen since the one before it.

Rejected: an estimate by the gap between two appearances (Yi et al., 2019): it needs no total, but a batch of some
hundred rows of a small catalogue has the popular items always, and then their gaps say 1 for each; and a cell for each
hash, whose collisions a table of the items that are kept anyway does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows

MOST = 1 << 18
HALF_LIFE = float(1 << 20)
NEWER = 8
"""Newer rows are put to the older ones when they are this share of them."""
SPARE_ROWS = 1 << 14
"""Rows of columns that may be out of date before they are dropped."""

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of columns.

    Attributes:
        columns: By name; {} for no rows.
    """

    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def take(self, rows: Int64s) -> _Rows:
        return _Rows({name: take_rows(column, rows) for name, column in self.columns.items()} if len(rows) else {})

    def joined(self, others: _Rows) -> _Rows:
        if not (self.columns and others.columns):
            return _Rows(self.columns or others.columns)
        return _Rows({name: join_columns([column, others.columns[name]]) for name, column in self.columns.items()})


class RecentItems:
    """The items chosen last.

    Attributes:
        keys: int64 [m], ascending.
        events: Number of events so far.
    """

    def __init__(self, names: Sequence[str], most: int = MOST, half_life: float = HALF_LIFE) -> None:
        """Begin without an item.

        Args:
            names: Names of the items' columns.
            most: Number of items that are kept.
            half_life: Events after which one counts half.
        """
        self._names, self._most, self._half_life = list(names), most, half_life
        self.clear()

    def clear(self) -> None:
        """Forget all items and events."""
        self.keys, self._counts = np.empty(0, np.int64), np.empty(0)
        # The number of events when an item was chosen last, up to when its count is known.
        self._last, self._rows = np.empty(0, np.int64), np.empty(0, np.int64)
        self._older, self._newer = _Rows({}), _Rows({})
        self.events, self._total, self._saved = 0, 0.0, 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: Int64s, columns: Mapping[str, Column]) -> None:
        """Add n events.

        Args:
            keys: int64 [n], keys of their items.
            columns: The items' columns, n rows each, by name.
        """
        if not len(keys):
            return
        items, newest, times = np.unique(keys[::-1], return_index=True, return_counts=True)
        self.events += len(keys)
        self._total = self._total * 0.5 ** (len(keys) / self._half_life) + len(keys)
        at = self._places(items)
        counts = times.astype(np.float64)
        counts[at >= 0] += self._counts_of(at[at >= 0])
        self._put(items, counts, np.full(len(items), self.events), columns, len(keys) - 1 - newest)

    def shares(self, keys: Int64s) -> Float64s:
        """Return the share [n] of the events that items have, as far as events count; 0 for one that is not there."""
        at = self._places(keys)
        if not len(self):
            return np.zeros(len(keys))
        return np.where(at >= 0, self._counts_of(np.maximum(at, 0)), 0.0) / self._total

    def columns_of(self, places: Int64s) -> dict[str, Column]:
        """Return the columns of the items at some places among the keys."""
        rows, first = self._rows[places], len(self._older)
        newer = rows >= first
        parts = [self._older.take(rows[~newer]), self._newer.take(rows[newer] - first)]
        if not (parts[0].columns and parts[1].columns):
            return (parts[0].columns or parts[1].columns) if len(self) else {}
        order = np.argsort(np.argsort(newer, kind="stable"), kind="stable")
        return parts[0].joined(parts[1]).take(order).columns

    def changes(self, whole: bool) -> Arrays:
        """Return what restore() takes: of all items, or of those chosen since the last call.

        Args:
            whole: Whether to return all.
        """
        places = np.flatnonzero(self._last > (-1 if whole else self._saved))
        self._saved = self.events
        arrays = {"keys": self.keys[places], "counts": self._counts[places].view(np.int64), "last": self._last[places]}
        # Checkpoints have no numbers of 64 bits but whole ones.
        arrays |= {"events": np.array([self.events], np.int64), "total": np.array([self._total]).view(np.int64)}
        for number, (_, column) in enumerate(sorted(self.columns_of(places).items())):
            for part, array in _encoded(column).items():
                arrays[f"columns/{number:04d}/{part}"] = array
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take in changes(), on top of the changes before them."""
        keys = np.array(arrays["keys"], np.int64)
        columns = {}
        for number, name in enumerate(sorted(self._names) if len(keys) else ()):
            start = f"columns/{number:04d}/"
            columns[name] = _decoded({k.removeprefix(start): a for k, a in arrays.items() if k.startswith(start)})
        self.events = self._saved = int(arrays["events"][0])
        self._total = float(np.array(arrays["total"]).view(np.float64)[0])
        if len(keys):
            last, rows = np.array(arrays["last"], np.int64), np.arange(len(keys))
            self._put(keys, np.array(arrays["counts"]).view(np.float64), last, columns, rows)

    def _places(self, keys: Int64s) -> Int64s:
        """Return the place of each key, -1 for one that is not there."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    def _counts_of(self, places: Int64s) -> Float64s:
        """Return what the events of items count now."""
        now: Float64s = self._counts[places] * 0.5 ** ((self.events - self._last[places]) / self._half_life)
        return now

    def _put(self, items: Int64s, counts: Float64s, last: Int64s, columns: Mapping[str, Column], rows: Int64s) -> None:
        """Put items in, ascending and each once, with rows of columns.

        Args:
            items: int64 [k].
            counts: float64 [k].
            last: int64 [k].
            columns: Columns by name.
            rows: int64 [k], the items' rows in them.
        """
        first = len(self._older) + len(self._newer)
        self._newer = self._newer.joined(_Rows({name: columns[name] for name in self._names}).take(rows))
        if len(self._newer) * NEWER > len(self._older):
            self._older, self._newer = self._older.joined(self._newer), _Rows({})
        numbers = first + np.arange(len(items))
        at = self._places(items)
        new = at < 0
        self._counts[at[~new]], self._last[at[~new]], self._rows[at[~new]] = counts[~new], last[~new], numbers[~new]
        if new.any():
            keys = np.concatenate([self.keys, items[new]])
            self._keep(
                np.argsort(keys, kind="stable"),
                keys,
                np.concatenate([self._counts, counts[new]]),
                np.concatenate([self._last, last[new]]),
                np.concatenate([self._rows, numbers[new]]),
            )
        if len(self) > self._most:
            newest_first = np.lexsort((-self.keys, -self._last))
            self._keep(np.sort(newest_first[: self._most]), self.keys, self._counts, self._last, self._rows)
        if first + len(items) > 2 * len(self) + SPARE_ROWS:
            self._older, self._newer = _Rows(self.columns_of(np.arange(len(self)))), _Rows({})
            self._rows = np.arange(len(self))

    def _keep(self, order: Int64s, keys: Int64s, counts: Float64s, last: Int64s, rows: Int64s) -> None:
        self.keys, self._counts, self._last, self._rows = keys[order], counts[order], last[order], rows[order]


def _encoded(column: Column, name: str = "values") -> Arrays:
    """Return a column as arrays by name."""
    if isinstance(column, Ragged):
        return _encoded(column.values) | {"splits": column.row_splits}
    if isinstance(column, Strings):
        return {"bytes": column.data, "offsets": column.offsets}
    return {name: np.asarray(column)}


def _decoded(arrays: Mapping[str, NDArray[Any]]) -> Column:
    """Return the column of _encoded()."""
    values: Any = (
        Strings(np.array(arrays["bytes"]), np.array(arrays["offsets"]))
        if "bytes" in arrays
        else np.array(arrays["values"])
    )
    return Ragged(values, np.array(arrays["splits"])) if "splits" in arrays else values
