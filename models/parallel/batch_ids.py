"""Collect the distinct ids of one table in a process's rows of a batch, with buffers for their rows and gradients.

Ids are grouped by owning process in rank order, so a process's ids, rows and gradients are one slice each. An index
maps each id to its position, so serving's pooling kernel can read these buffers as a table.

Owned by the thread of a step; valid until the next begin(). Cost: about 40 ns a value and 12 ns a distinct id; memory
of the largest batch so far.
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
    """Buffers for the distinct ids of one table in one batch.

    Attributes:
        ids: int64 [n], grouped by owning process.
        times: int64 [n], their occurrences.
        ends: int64 [processes + 1], where each process's ids begin, and where the last end.
        rows: float32 [n, dim].
        sums: float32 [n, dim], their gradient sums.
        met: int64 [n], how often each was read for its gradient.
        place: int32 [_], index in `sums` of each id's gradient (models.embedding.kernels.accumulate).
    """

    def __init__(self, name: str, dim: int, processes: int) -> None:
        self._name, self.dim, self._processes = name, dim, processes
        self._default = np.zeros(dim, np.float32)
        self.ends = np.zeros(processes + 1, np.int64)
        self._make_room(FIRST_IDS)

    def begin(self, values: Int64s) -> Int64s:
        """Load a batch's ids; return the position of each value among the distinct ids."""
        if len(values) > len(self._ids):
            self._make_room(len(values) * 5 // 4)
        refs = np.empty(len(values), np.int64)
        id_kernels.clear(self._index.ctypes.data, self._scratch[0, : len(self.ids)])
        index = self._index.ctypes.data, len(self._index)
        outputs = self._ids, self._times, self._scratch, refs, self.ends
        self._take(id_kernels.distinct(*index, values, SHARDS, self._processes, *outputs))
        return refs

    def begin_gradients(self) -> None:
        self.sums[:], self.met[:] = 0.0, 0

    def descriptor(self) -> list[int]:
        """Return the table's descriptor, as EmbeddingVariable.descriptor() does."""
        return self._described

    def _take(self, count: int) -> None:
        self.ids, self.times = self._ids[:count], self._times[:count]
        self.rows, self.sums, self.met = self._rows[:count], self._sums[:count], self._met[:count]

    def _make_room(self, ids: int) -> None:
        self._index = hash_index.empty_index(hash_index.capacity_for(ids))
        self._ids, self._times, self._met = (np.empty(ids, np.int64) for _ in range(3))
        self._scratch = np.empty((4, ids), np.int64)
        self._rows, self._sums = (np.empty((ids, self.dim), np.float32) for _ in range(2))
        self.place = np.arange(ids, dtype=np.int32)
        arrays: dict[str, NDArray[Any]] = dict.fromkeys(("arena", "meta", "scales", "arena_scales"), _NOTHING)
        arrays |= {"index": self._index, "base": self._rows, "default": self._default}
        self._described = descriptor(TableEntry(self._name, self.dim, ids), arrays)
        self._take(0)
