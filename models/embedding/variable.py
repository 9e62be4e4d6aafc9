"""EmbeddingVariable: an embedding table that grows by id and never lets two ids share a row (DeepRec's EV).

One owner, the trainer's thread. An id gets its row the first time training meets it; the row's first value is a
function of (seed, id) alone, so it does not depend on the order of arrival. Serving and evaluation look up without
inserting and read the default row (zeros) for an id that has none.

Rows, optimizer slots and bookkeeping live in flat arrays that double when full; the index is the one that serving
uses (processor.kernels.index). A removed row's place is used again. `changed` collects what a delta has to carry:
ids whose rows moved, ids that were removed, since the last clear_changed().
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.embedding.optimizer import RowOptimizer
from processor.kernels import index as hash_index
from processor.kernels.hashing import init_rows
from processor.package.manifest import TableEntry
from processor.tables.table import descriptor

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

FIRST_ROWS = 1024
_NOTHING: NDArray[np.float32] = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Changes:
    """keys int64 [m], ascending, with rows float32 [m, dim], slots [m, _], last_step and counts int64 [m]; removed
    int64 [r], ascending."""

    keys: Int64s
    rows: Float32s
    slots: Float32s
    last_step: Int64s
    counts: Int64s
    removed: Int64s


class EmbeddingVariable:
    """Rows of one table by int64 id, with the optimizer's slots, counts and the last step of each.

    rows float32 [_, dim], slots, last_step, counts: by row number. place: scratch of the gradient kernels.
    """

    def __init__(self, name: str, dim: int, optimizer: RowOptimizer, seed: int = 0, init_limit: float = 0.01) -> None:
        """init_limit: first values are uniform in [-init_limit, init_limit)."""
        self.name, self.dim, self.optimizer = name, dim, optimizer
        self.seed, self.init_limit = seed, init_limit
        self._slots_a_row = optimizer.slots_a_row(dim)
        self._fill = optimizer.fill(dim)
        self._default = np.zeros(dim, np.float32)
        self.clear()

    def clear(self) -> None:
        """Gives up every row, without a trace."""
        dim = self.dim
        self._index = hash_index.empty_index(hash_index.capacity_for(FIRST_ROWS))
        self._used = 0
        self._keys = np.zeros(FIRST_ROWS, np.int64)
        self.rows = np.zeros((FIRST_ROWS, dim), np.float32)
        self.slots = np.zeros((FIRST_ROWS, self._slots_a_row), np.float32)
        self.last_step = np.zeros(FIRST_ROWS, np.int64)
        self.counts = np.zeros(FIRST_ROWS, np.int64)
        self._changed = np.zeros(FIRST_ROWS, np.bool_)
        self.place = np.full(FIRST_ROWS, -1, np.int32)
        self._bump = 0
        self._free: list[int] = []
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return self._bump - len(self._free)

    def find(self, ids: Int64s) -> Int64s:
        """Row numbers of `ids`, negative where an id has none."""
        refs = np.empty(len(ids), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), ids, refs)
        return refs

    def insert(self, ids: Int64s) -> Int64s:
        """Row numbers of `ids`; those without a row get one, with its first value."""
        refs = self.find(ids)
        missing = np.unique(ids[refs < 0])
        if len(missing):
            self._put(missing)
            refs = self.find(ids)
        return refs

    def update(self, touched: Int64s, sums: Float32s, rate: float, step: int) -> None:
        """Takes one optimizer step on rows `touched` [m] with gradients `sums` [m, dim]."""
        self.optimizer.update(touched, sums, self.rows, self.slots, rate, step)
        self.last_step[touched] = step
        self.counts[touched] += 1
        self._changed[touched] = True

    def remove(self, ids: Int64s) -> int:
        """Gives up the rows of `ids` (tombstones in the next delta); returns how many there were."""
        refs = self.find(ids)
        gone = np.unique(refs[refs >= 0])
        self._index[self._entries(self._keys[gone]), 1] = hash_index.ABSENT
        self._changed[gone] = False
        self._removed.update(self._keys[gone].tolist())
        self._free.extend(gone.tolist())
        return len(gone)

    def changes(self) -> Changes:
        """The changes since the last clear_changed()."""
        refs = np.flatnonzero(self._changed[: self._bump])
        return self._gather(refs, np.array(sorted(self._removed), np.int64))

    def clear_changed(self) -> None:
        self._changed[:] = False
        self._removed.clear()

    def export(self) -> Changes:
        """Every row, by ascending id."""
        return self._gather(self._live(), np.empty(0, np.int64))

    def restore(self, changes: Changes) -> None:
        """Puts rows back as export() or changes() gave them, and takes out what was removed."""
        if len(changes.removed):
            self.remove(changes.removed)
        missing = changes.keys[self.find(changes.keys) < 0]
        if len(missing):
            self._put(missing)
        refs = self.find(changes.keys)
        self.rows[refs], self.slots[refs] = changes.rows, changes.slots
        self.last_step[refs], self.counts[refs] = changes.last_step, changes.counts
        self.clear_changed()

    def mark(self, changes: Changes) -> None:
        """Counts these ids as changed once more: what was to carry them has not been published."""
        self._changed[self.find(changes.keys)] = True
        self._removed.update(changes.removed.tolist())

    def overwrite(self, keys: Int64s, rows: Float32s, removed: Int64s, rate: float, step: int) -> None:
        """Takes rows that somebody else made, and takes out what they removed; all of it counts as changed.

        rate, step: of the run; the slots of these rows begin anew.
        """
        self.remove(removed)
        missing = keys[self.find(keys) < 0]
        if len(missing):
            self._put(missing)
        refs = self.find(keys)
        self.rows[refs], self.slots[refs] = rows, self.optimizer.slots_of(rows, rate, step)
        self._changed[refs] = True

    def descriptor(self) -> list[int]:
        """The table as serving's kernels take it: float32, all rows of epoch 0, no arena."""
        arrays = dict.fromkeys(("arena", "meta", "scales", "arena_scales"), _NOTHING)
        arrays |= {"index": self._index, "base": self.rows, "default": self._default}
        return descriptor(TableEntry(self.name, self.dim, len(self.rows)), arrays)

    def _gather(self, refs: Int64s, removed: Int64s) -> Changes:
        refs = refs[np.argsort(self._keys[refs])]
        last_step, counts = self.last_step[refs], self.counts[refs]
        return Changes(self._keys[refs], self.rows[refs], self.slots[refs], last_step, counts, removed)

    def _live(self) -> Int64s:
        refs = np.ones(self._bump, np.bool_)
        refs[self._free] = False
        return np.flatnonzero(refs)

    def _put(self, ids: Int64s) -> None:
        """Gives each of `ids`, distinct and without a row, a fresh one."""
        recycled = [self._free.pop() for _ in range(min(len(ids), len(self._free)))]
        fresh = len(ids) - len(recycled)
        self._grow(self._bump + fresh)
        refs = np.concatenate([np.array(recycled, np.int64), np.arange(self._bump, self._bump + fresh)])
        self._bump += fresh
        if (self._used + len(ids)) * 8 > len(self._index) * 7:
            self._rehash()
        self._index[self._entries(ids), 1] = refs
        self._keys[refs] = ids
        first = np.empty((len(ids), self.dim), np.float32)
        init_rows(ids, np.uint64(self.seed), np.float32(self.init_limit), first)
        self.rows[refs], self.slots[refs] = first, self._fill
        self.last_step[refs] = self.counts[refs] = 0
        self._changed[refs] = True
        self._removed.difference_update(ids.tolist())

    def _entries(self, ids: Int64s) -> Int64s:
        entries = np.empty(len(ids), np.int64)
        self._used += hash_index.claim(self._index.ctypes.data, len(self._index), ids, entries)
        return entries

    def _rehash(self) -> None:
        """Drops the entries of removed ids; sized by the rows there are, so that churn alone never grows the index."""
        grown = hash_index.empty_index(hash_index.capacity_for(max(FIRST_ROWS, 2 * len(self))))
        source = self._index.ctypes.data
        self._used = hash_index.rehash(source, len(self._index), grown.ctypes.data, len(grown))
        self._index = grown

    def _grow(self, rows: int) -> None:
        size = len(self._keys)
        if rows <= size:
            return
        while size < rows:
            size *= 2
        for name in ("_keys", "rows", "slots", "last_step", "counts", "_changed"):
            old = getattr(self, name)
            new = np.zeros((size, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        self.place = np.full(size, -1, np.int32)
