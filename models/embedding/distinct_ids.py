"""Collect distinct ids of many batches, in the order of first occurrence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding import kernels
from freshet_serving.processor.kernels import index as hash_index

Int64s = NDArray[np.int64]

FIRST_IDS = 1 << 12


class DistinctIds:
    """A set of int64 that only grows. About 20 ns an added id."""

    def __init__(self) -> None:
        self._count = 0
        self._make(FIRST_IDS)

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Int64s:
        return self._ids[: self._count]

    def add(self, ids: Int64s) -> None:
        if self._count + len(ids) > len(self._ids):
            before = self.ids
            self._make(2 * (self._count + len(ids)))
            self._count = self._collect(before, 0)
        self._count = self._collect(ids, self._count)

    def _collect(self, ids: Int64s, count: int) -> int:
        distinct: int = kernels.collect(self._index.ctypes.data, len(self._index), ids, self._ids, count)
        return distinct

    def _make(self, ids: int) -> None:
        self._ids = np.empty(ids, np.int64)
        self._index = hash_index.empty_index(hash_index.capacity_for(ids))
