"""A served table whose base rows are in a row store: deltas, epochs and rollback work as usual, over an empty base.

All differences from ServedTable
- An id without a local row version may have a row in the store. So a removal leaves a tombstone even if the id is
  unknown here, and vacuuming keeps the tombstone: if it became ABSENT, the store would be asked again and return the
  removed row. That costs one slot per removed id until the id is upserted again.
- `rows` and export() cover rows of deltas only; the store's rows are not counted here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.remote_rows import batch_ids as kernels
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.package import TableDelta, TableEntry
from freshet_serving.processor.tables.table import Int64s, RowVersions, ServedTable, packed


class RemoteTable(ServedTable):
    """A remote table in this process: what deltas changed; the rest is in a store."""

    rows_elsewhere = True

    def __init__(self, spec: TableEntry) -> None:
        nothing = packed(np.empty(0, np.int64), np.empty((0, spec.dim), np.float32), spec.dtype)
        super().__init__(replace(spec, rows=0), nothing)

    @property
    def rows(self) -> int:
        """Number of rows of deltas in the newest epoch."""
        refs = self._index[:, 1]
        refs = refs[refs >= 0]
        return len(refs) - int(np.count_nonzero(self._buried(refs)))

    def apply(self, delta: TableDelta, epoch: int, versions: RowVersions | None = None) -> RowVersions:
        """Apply a delta as ServedTable does, and also publish tombstones of ids that have no row here."""
        if len(delta.removed):
            # Claim entries for tombstones of unknown ids, with room for the upserts as well: if the index grew before
            # they are used, they would be lost.
            self._make_room(np.concatenate([delta.keys, delta.removed]))
            kernels.claim(self._row, delta.removed, self._counts)
        return super().apply(delta, epoch, versions)

    def export(self, epoch: int) -> tuple[Int64s, NDArray[np.float32]]:
        """Return every key that deltas gave a row, ascending, with its row: int64 [n], float32 [n, dim]."""
        table, capacity = self._row, len(self._index)
        keys, refs = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = kernels.live(table, epoch, keys, refs)
        order = np.argsort(keys[:count])
        rows = np.empty((count, self.spec.dim), np.float32)
        row_kernels.gather(table, refs[:count][order], rows)
        return keys[:count][order], rows

    def _vacuum(self, versions: RowVersions, safe_seq: int) -> None:
        count = len(versions.keys)
        rows, replaced, dead = np.empty(count, np.bool_), np.empty(count, np.int64), np.empty(count, np.int64)
        row_kernels.plan_vacuum(self._row, versions.slots, rows, replaced, dead)
        freed = replaced[replaced >= 0]
        self._torn = True
        kernels.vacuum(self._row, versions.keys, versions.slots)
        self._slots.free(freed)
        self._torn = False

    def _present(self, keys: Int64s) -> Int64s:
        """Return those of `keys` that may have a row in the newest epoch: their newest version is not a tombstone."""
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        return keys[~self._buried(refs)]

    def _buried(self, refs: Int64s) -> NDArray[np.bool_]:
        buried = refs >= 0
        slots = refs[buried] % row_kernels.SETTLED
        buried[buried] = self._meta[slots, 0] & 1 == 1
        return buried
