"""Collect the distinct ids of one table in a process's rows of a batch, with buffers for their rows and gradients.

Ids are grouped by the process that owns them, in rank order, so what belongs to one process is one slice of the ids,
rows and gradients alike. The index maps each id to its position, so serving's pooling kernel can read from these
buffers as from a table.

One owner: the thread of a step. What begin() returns or sets is valid until the next begin(). Cost: about 40 ns a value
and 12 ns a distinct id; memory of the largest batch so far.
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
        ids: int64 [n], the distinct ids, grouped by owning process.
        times: int64 [n], the number of occurrences of each id.
        ends: int64 [processes + 1], where each process's ids begin and where the last ones end.
        rows: float32 [n, dim], the rows of the ids.
        sums: float32 [n, dim], the gradient sums of the ids.
        met: int64 [n], how often each id was read for its gradient.
    """

    def __init__(self, name: str, dim: int, processes: int) -> None:
        self._name, self.dim, self._processes = name, dim, processes
        self._default = np.zeros(dim, np.float32)
        self.ends = np.zeros(processes + 1, np.int64)
        self._make_room(FIRST_IDS)

    def begin(self, values: Int64s) -> Int64s:
        """Load a batch's ids and return the position of each value among the distinct ids."""
        if len(values) > len(self._ids):
            self._make_room(len(values) * 5 // 4)
        refs = np.empty(len(values), np.int64)
        id_kernels.clear(self._index.ctypes.data, self._scratch[0, : len(self.ids)])
        index = self._index.ctypes.data, len(self._index)
        kept = self._ids, self._times, self._scratch, refs, self.ends
        self._take(id_kernels.distinct(*index, values, SHARDS, self._processes, *kept))
        return refs

    def begin_gradients(self) -> None:
        """Reset all gradients to zero."""
        self.sums[:], self.met[:] = 0.0, 0

    @property
    def place(self) -> NDArray[np.int32]:
        """Index in `sums` of each id's gradient (models.embedding.kernels.accumulate)."""
        return self._place

    def descriptor(self) -> list[int]:
        """Return the table descriptor, in the form of EmbeddingVariable.descriptor()."""
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
