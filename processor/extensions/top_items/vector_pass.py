"""Compute the vectors of all items of one generation, slice by slice, while later deltas are served.

A pass reads the rows of the generation that it began with. No reader's pin keeps them, as the writer would wait for it,
but a floor (processor.versions.row_watchers): the writer reuses no row of a later state. What that holds back grows
with the deltas that arrive, so after MOST_CHANGES rows a pass ends without result, and begins anew with larger slices.

    compute   all vectors of the generation
    encode    their codes, and what filters read, so that no reader meets stale ones
    follow    while the tower is the one that is served: the vectors of items that deltas have touched since, as of the
              served generation, which becomes that of the pass; again, while that halves what is left to do
    end       few items are left: they are computed at once, and vectors are of the served generation. Or they lag: they
              are of the pass's generation, but for items that have been removed since

Slices are of a few milliseconds, but for listing the items, sorting the rows that they read, and indexing the vectors;
for 400,000 items with two rows of a shared table each, a tenth of a second in all.

Invariants
- Every vector of the result is that of one generation: `generation`.
- All rows that were changed since then are in `changes`: note() is called with each delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity
from freshet_serving.processor.extensions.top_items.item_readers import ItemReaders
from freshet_serving.processor.extensions.top_items.item_tower import ItemTower
from freshet_serving.processor.extensions.top_items.tower_runs import TowerRuns, TowerWeights
from freshet_serving.processor.extensions.top_items.vector_table import NO_KEYS, VectorTable, reserved_rows
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.tables.table import ServedTable, descriptors
from freshet_serving.processor.versions.row_watchers import DerivedState

ROWS = 512
"""Vectors between two looks at the clock."""
AT_ONCE = 20_000
"""Items that a delta, or the end of a pass, computes at once: beyond it vectors lag."""
MOST_CHANGES = 4_000_000
FEWER = 1 / 2
"""Part of its items to which a round of follow must reduce them to be worth another one."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class ItemRows:
    """The catalogue and the tables that vectors are computed of, as the version's writer has them."""

    def __init__(
        self,
        tower: ItemTower,
        runs: TowerRuns,
        tables: Mapping[str, ServedTable],
        filtered: FilteredEntity | None = None,
    ) -> None:
        self.filtered = None if filtered is None else (tables[filtered.entity.table], filtered)
        self.tower, self.runs, self._tables = tower, runs, tables
        self.catalogue = tables[tower.table]

    def readers(self) -> ItemReaders:
        unknown = {name: table.spec.unknown_key for name, table in self._tables.items()}
        return ItemReaders(self.tower, {name: key for name, key in unknown.items() if key is not None})

    def keys(self, epoch: int) -> Int64s:
        table = np.array(self.catalogue.descriptor(), np.int64)
        capacity = len(self.catalogue.arrays["index"])
        keys, refs = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = row_kernels.live(table, epoch, keys, refs)
        keys = keys[:count]
        unknown = self.catalogue.spec.unknown_key
        return np.sort(keys if unknown is None else keys[keys != unknown])

    def present(self, keys: Int64s, epoch: int) -> NDArray[np.bool_]:
        """Return which keys are items as of an epoch."""
        refs = np.empty(len(keys), np.int64)
        row_kernels.look_up(np.array(self.catalogue.descriptor(), np.int64), epoch, np.ascontiguousarray(keys), refs)
        items: NDArray[np.bool_] = refs >= 0
        unknown = self.catalogue.spec.unknown_key
        return items if unknown is None else items & (keys != unknown)

    def compute(self, weights: TowerWeights, keys: Int64s, epoch: int, out: Float32s) -> None:
        tables = descriptors([table.descriptor() for table in self._tables.values()])
        self.runs.vectors(weights, tables, epoch, keys, out)

    def index(self, readers: ItemReaders, keys: Int64s, epoch: int) -> None:
        """Add the rows that items read as of an epoch to an index."""
        if self.tower.lookups and len(keys):
            are_known, records = self.catalogue.look_up(np.ascontiguousarray(keys), epoch)
            readers.add(keys[are_known], records)

    def derive(self, vectors: VectorTable, touched: Int64s, epoch: int) -> TableDelta:
        """Return the vectors of touched items as of an epoch; those that are no items any more are removed."""
        present = self.present(touched, epoch)
        keys = np.ascontiguousarray(touched[present])
        rows = np.empty((len(keys), self.tower.columns), np.float32)
        self.compute(vectors.weights, keys, epoch, rows)
        return TableDelta(keys, rows, np.ascontiguousarray(touched[~present]))


class VectorPass:
    """One pass over all items; its vectors are of one generation, whose rows are read under a flip.

    The result is `vectors`, `current` if it is of the served generation. `superseded_s` is when the generation ceased
    to be served, on the monotonic clock; None while it is.
    """

    def __init__(self, items: ItemRows, name: str, state: DerivedState, now_s: Callable[[], float]) -> None:
        """Begin with the served state; `name` is that of the table to make."""
        self._items, self._name, self._now_s = items, name, now_s
        self._weights = items.runs.weights(state.dense)
        self._readers, self._merged = items.readers(), False
        self._begin(state, items.keys(state.epoch))
        self.vectors: VectorTable | None = None
        self.current = False

    def _begin(self, state: DerivedState, keys: Int64s) -> None:
        self.generation, self.publish_seq, self.epoch = state.generation, state.publish_seq, state.epoch
        self.superseded_s: float | None = None
        self._keys, self._at = keys, 0
        self._rows = reserved_rows(len(keys), self._items.tower.columns)
        self.changes: dict[str, list[Int64s]] = {}
        self._changed = 0

    @property
    def hopeless(self) -> bool:
        """True if it holds back too much."""
        return self._changed > MOST_CHANGES

    def note(self, changes: Mapping[str, Int64s], rows: int) -> None:
        """Take note of a delta of so many rows; `changes` are those that vectors depend on, by table."""
        self._changed += rows
        if self.superseded_s is None:
            self.superseded_s = self._now_s()
        for name, keys in changes.items():
            self.changes.setdefault(name, []).append(keys)

    def step(self, state: DerivedState, most_s: float) -> bool:
        """Work for at most so many seconds; return True once there is a result."""
        until_s = self._now_s() + most_s
        while self._at < len(self._keys):
            keys = self._keys[self._at : self._at + ROWS]
            self._items.compute(self._weights, keys, self.epoch, self._rows[self._at : self._at + len(keys)])
            if self.vectors is None:
                self._items.index(self._readers, keys, self.epoch)
            self._at += len(keys)
            if self._now_s() >= until_s:
                return False
        if self.vectors is None:
            if not self._merged:
                self._readers.merge()
                self._merged = True
                if self._now_s() >= until_s:
                    return False
            arrays = self._keys, self._rows, self._weights, self._readers
            self.vectors = VectorTable(self._name, *arrays, self._items.filtered)
        elif len(self._keys):
            self._put(TableDelta(self._keys, self._rows, NO_KEYS), state)
        self._keys = NO_KEYS
        self._at = 0
        while self.vectors.refresh(state.epoch):
            if self._now_s() >= until_s:
                return False
        return self._end(self.vectors, state)

    def _end(self, vectors: VectorTable, state: DerivedState) -> bool:
        """Bring the result up to the served state, if that can be done; return False to follow on in slices."""
        before = len(self._rows)
        if not self._weights.holds(state.dense):
            return True
        touched = vectors.readers.touched(self.changes, max(AT_ONCE, int(before * FEWER)))
        if touched is None:
            return True
        # Records that were changed may read other rows than before.
        changed = np.unique(np.concatenate([NO_KEYS, *self.changes.get(self._items.tower.table, [])]))
        self._items.index(vectors.readers, changed, state.epoch)
        if len(touched) > AT_ONCE:
            present = self._items.present(touched, state.epoch)
            self._put(TableDelta(NO_KEYS, self._rows[:0], touched[~present]), state)
            self._begin(state, np.ascontiguousarray(touched[present]))
            return False
        self._put(self._items.derive(vectors, touched, state.epoch), state)
        self.generation, self.current = state.generation, True
        return True

    def _put(self, delta: TableDelta, state: DerivedState) -> None:
        assert self.vectors is not None, "it has been made"
        if len(delta.keys) or len(delta.removed):
            self.vectors.put(delta, state.epoch, state.publish_seq)
