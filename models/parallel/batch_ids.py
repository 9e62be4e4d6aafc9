"""Of one table, the distinct ids of a process' rows of a batch, with room for their rows and for their gradients.

Ids stand in the order of the processes that have them: what is for one process is one slice, of ids, of rows and of
gradients alike. The index says where each id stands, so serving's kernel pools from here as from a table.

One owner, a step's thread. What begin() returns or sets is good until the next begin(). Cost: about 40 ns a value and
12 ns a distinct one; memory of the largest batch so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.id_shards import SHARDS
from freshet_serving.models.parallel import id_kernels
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.tables.table import descriptor

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

FIRST_IDS = 1 << 10
_NOTHING: Float32s = np.empty(0, np.float32)


class BatchIds:
    """ids, times int64 [n]: distinct ids and how often each has come. ends: where those of each process begin, and of
    the last one end. rows, sums float32 [n, dim]: theirs; met int64 [n]: how often each was read for its gradient."""

    def __init__(self, name: str, dim: int, processes: int) -> None:
        self._name, self.dim, self._processes = name, dim, processes
        self._default = np.zeros(dim, np.float32)
        self.ends = np.zeros(processes + 1, np.int64)
        self._make_room(FIRST_IDS)

    def begin(self, values: Int64s) -> Int64s:
        """Takes ids as they come; where each stands among the distinct ones."""
        if len(values) > len(self._ids):
            self._make_room(len(values) * 5 // 4)
        refs = np.empty(len(values), np.int64)
        id_kernels.clear(self._index.ctypes.data, self._scratch[0, : len(self.ids)])
        index = self._index.ctypes.data, len(self._index)
        kept = self._ids, self._times, self._scratch, refs, self.ends
        self._take(id_kernels.distinct(*index, values, SHARDS, self._processes, *kept))
        return refs

    def begin_gradients(self) -> None:
        """Makes all of them zero."""
        self.sums[:], self.met[:] = 0.0, 0

    @property
    def place(self) -> NDArray[np.int32]:
        """Where the gradient of each is added up (models.embedding.kernels.accumulate)."""
        return self._place

    def descriptor(self) -> list[int]:
        """As EmbeddingVariable's."""
        return self._described

    def _take(self, count: int) -> None:
        self.ids, self.times = self._ids[:count], self._times[:count]
        self.rows, self.sums, self.met = self._rows[:count], self._sums[:count], self._met[:count]

    def _make_room(self, ids: int) -> None:
        self._index = hash_index.empty_index(hash_index.capacity_for(ids))
        self._ids, self._times, self._met = (np.empty(ids, np.int64) for _ in range(3))
        self._scratch = np.empty((4, ids), np.int64)
        self._rows, self._sums = (np.empty((ids, self.dim), np.float32) for _ in range(2))
        self._place = np.arange(ids, dtype=np.int32)
        arrays: dict[str, NDArray[Any]] = dict.fromkeys(("arena", "meta", "scales", "arena_scales"), _NOTHING)
        arrays |= {"index": self._index, "base": self._rows, "default": self._default}
        self._described = descriptor(TableEntry(self._name, self.dim, ids), arrays)
        self._take(0)
