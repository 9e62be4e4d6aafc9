"""A served table whose base rows live in a row store: deltas, epochs and rollback as ever, over an empty base.

Differences to ServedTable, all of them
- An id without a local version may have a row in the store. So a removal leaves a tombstone whether or not the id is
  known here, and a tombstone stays the id's head for good: turned into ABSENT, it would ask the store again and find
  the row that was removed. That costs one slot an id removed, until the id is upserted again.
- `rows` and export() tell of rows that deltas brought; the store's are not counted here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from processor.kernels import index as hash_index
from processor.package.delta import TableDelta
from processor.package.manifest import Table
from processor.table import Int64s, ServedTable, Versions, packed


class RemoteTable(ServedTable):
    """What deltas changed of a table; the rest is in a store."""

    def __init__(self, spec: Table) -> None:
        nothing = packed(np.empty(0, np.int64), np.empty((0, spec.dim), np.float32), spec.dtype)
        super().__init__(replace(spec, rows=0), nothing)

    @property
    def rows(self) -> int:
        """Rows of deltas in the newest epoch."""
        slots = self._index[:, 1]
        slots = slots[slots >= 0]
        return int(np.count_nonzero(self._meta[slots, 0] & 1 == 0))

    def apply(self, delta: TableDelta, epoch: int) -> Versions:
        """Stages and publishes the delta's rows and tombstones; readers of epochs before `epoch` see no change."""
        if len(delta.removed):
            # Entries for the tombstones of ids that are unknown here, claimed with room for the upserts as well: the
            # index cannot grow before they are used, which would leave them behind.
            self._make_room(np.concatenate([delta.keys, delta.removed]))
            entries = np.empty(len(delta.removed), np.int64)
            self._used += hash_index.claim(self._index.ctypes.data, len(self._index), delta.removed, entries)
        return super().apply(delta, epoch)

    def retire(self, versions: Versions, safe_flip: int) -> None:
        """Gives up what the delta's versions replaced; tombstones stay."""
        replaced = self._meta[versions.slots, 1]
        freed = replaced[replaced >= 0]
        if len(freed):
            self._limbo.append((safe_flip, freed))

    def _present(self, keys: Int64s) -> Int64s:
        """Those of `keys` that may have a row in the newest epoch: those whose newest version is not a tombstone."""
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        buried = refs >= 0
        buried[buried] = self._meta[refs[buried], 0] & 1 == 1
        return keys[~buried]
