"""The items of a run that were chosen last: their columns, and how often each is chosen.

They give a step further items to compare users with, and every item's share of the events, by which the softmax over
some items is corrected to one over all (models.training.retrieval_functions).

Invariants
- The items are the `most` chosen last; of those chosen in one batch, the higher keys stay. This holds after each batch
  and each restore, so a resumed run continues with the same items.
- An item's columns are those of its newest row.
- An item's count is exact but for its age: an event counts half after HALF_LIFE events. An item that returns begins
  anew.
- Costs: a batch costs its own rows (columns are copied NEWER times on average), and one pass over the keys if it has
  new items. A checkpoint costs the items chosen since the one before.

Rejected: an estimate by the gap between two appearances (Yi et al., 2019): batches of a small catalogue always have the
popular items, whose gaps are all 1; a cell for each hash, whose collisions this table does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.catalogue_ranking import places_of
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows

MOST = 1 << 18
HALF_LIFE = float(1 << 20)
NEWER = 8
"""Newer rows are appended to the older ones at this share of them."""
SPARE_ROWS = 1 << 14
"""Outdated rows of columns that may exist before they are dropped."""

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of columns by name; {} for no rows."""

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
    """The items chosen last; `keys` are int64 [m], ascending."""

    def __init__(self, names: Sequence[str], most: int = MOST, half_life: float = HALF_LIFE) -> None:
        """Begin without an item; an event counts half after `half_life` events."""
        self._names, self._most, self._half_life = list(names), most, half_life
        self.clear()

    def clear(self) -> None:
        self.keys, self._counts = np.empty(0, np.int64), np.empty(0)
        # By item: the number of events when it was chosen last, for which its count holds.
        self._last, self._rows = np.empty(0, np.int64), np.empty(0, np.int64)
        self._older, self._newer = _Rows({}), _Rows({})
        self.events, self._total, self._saved = 0, 0.0, 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, keys: Int64s, columns: Mapping[str, Column]) -> None:
        """Add n events by their items' keys, int64 [n], and columns of n rows."""
        if not len(keys):
            return
        items, newest, times = np.unique(keys[::-1], return_index=True, return_counts=True)
        self.events += len(keys)
        self._total = self._total * 0.5 ** (len(keys) / self._half_life) + len(keys)
        at = places_of(self.keys, items)
        counts = times.astype(np.float64)
        counts[at >= 0] += self._counts_of(at[at >= 0])
        self._put(items, counts, np.full(len(items), self.events), columns, len(keys) - 1 - newest)

    def shares(self, keys: Int64s) -> Float64s:
        """Return the items' shares [n] of the events as they count now; 0 for an absent item."""
        at = places_of(self.keys, keys)
        if not len(self):
            return np.zeros(len(keys))
        return np.where(at >= 0, self._counts_of(np.maximum(at, 0)), 0.0) / self._total

    def columns_of(self, places: Int64s) -> dict[str, Column]:
        """Return the columns of the items at places among the keys."""
        rows, first = self._rows[places], len(self._older)
        newer = rows >= first
        parts = [self._older.take(rows[~newer]), self._newer.take(rows[newer] - first)]
        if not (parts[0].columns and parts[1].columns):
            return (parts[0].columns or parts[1].columns) if len(self) else {}
        order = np.argsort(np.argsort(newer, kind="stable"), kind="stable")
        return parts[0].joined(parts[1]).take(order).columns

    def changes(self, whole: bool) -> Arrays:
        """Return what restore() takes: `whole`, or of items chosen since the last call."""
        places = np.flatnonzero(self._last > (-1 if whole else self._saved))
        self._saved = self.events
        arrays = {"keys": self.keys[places], "counts": self._counts[places].view(np.int64), "last": self._last[places]}
        # Checkpoints store no float64.
        arrays |= {"events": np.array([self.events], np.int64), "total": np.array([self._total]).view(np.int64)}
        for number, (_, column) in enumerate(sorted(self.columns_of(places).items())):
            for part, array in _encoded(column).items():
                arrays[f"columns/{number:04d}/{part}"] = array
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Apply changes() to the state after the changes before them."""
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

    def _counts_of(self, places: Int64s) -> Float64s:
        now: Float64s = self._counts[places] * 0.5 ** ((self.events - self._last[places]) / self._half_life)
        return now

    def _put(self, items: Int64s, counts: Float64s, last: Int64s, columns: Mapping[str, Column], rows: Int64s) -> None:
        """Put in items [k], ascending and each once, with the rows [k] of columns that are theirs."""
        first = len(self._older) + len(self._newer)
        self._newer = self._newer.joined(_Rows({name: columns[name] for name in self._names}).take(rows))
        if len(self._newer) * NEWER > len(self._older):
            self._older, self._newer = self._older.joined(self._newer), _Rows({})
        numbers = first + np.arange(len(items))
        at = places_of(self.keys, items)
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
    if isinstance(column, Ragged):
        return _encoded(column.values) | {"splits": column.row_splits}
    if isinstance(column, Strings):
        return {"bytes": column.data, "offsets": column.offsets}
    return {name: np.asarray(column)}


def _decoded(arrays: Mapping[str, NDArray[Any]]) -> Column:
    values: Any = (
        Strings(np.array(arrays["bytes"]), np.array(arrays["offsets"]))
        if "bytes" in arrays
        else np.array(arrays["values"])
    )
    return Ragged(values, np.array(arrays["splits"])) if "splits" in arrays else values
