"""Cache rows fetched from a store, bounded and shared by the sessions of a process.

Sets of eight ways. A way holds an id, a count from 1 to 127, and its row or the fact that the store has none: rows of a
version never change, so what was fetched once stays right for as long as the version is served. A full set evicts a way
with the smallest count, in turn, and every 16th eviction halves the counts of its set: least frequently used, with
ageing. It needs neither lists nor a clock: one line of keys, eight bytes of counts.

Chosen against an exact LRU by simulation (2 million draws from 1 million ids, caches of 1 and 10 % of them): hit rates
of 0.701 and 0.846 against 0.677 and 0.839 for Zipf 1.05, 0.255 and 0.518 against 0.231 and 0.486 for Zipf 0.8, because
ids that occur once do not evict recurring ones. If all popularities are redistributed every 500,000 draws it is 1 to 2
points better with the small cache and 2 worse with the large one.

`lock` guards every array; it is held for kernel calls only, which run without the GIL, never for a round trip. Memory
is reserved at once and becomes resident as it is used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.remote_rows import cached_rows as kernels
from freshet_serving.processor.extensions.remote_rows.bucket_bytes import LOST
from freshet_serving.processor.memory import reserve

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class RowCache:
    """One cache for each of a version's remote tables."""

    def __init__(self, row_nbytes: Sequence[int], rows: int) -> None:
        """Reserve caches of `rows` rows each, rounded up to whole sets; 0 to disable caching."""
        sets = -(-rows // kernels.WAYS)
        ways = sets * kernels.WAYS
        self.lock = threading.Lock()
        self._sets = sets
        self._keep: list[Bytes] = []
        self._tables = np.zeros((len(row_nbytes), kernels.CACHE_FIELDS), np.int64)
        for k, nbytes in enumerate(row_nbytes if sets else ()):
            buffers = [reserve(ways * n, f"cache-{part}") for part, n in (("ids", 8), ("marks", 1), ("rows", nbytes))]
            self._keep += buffers
            self._tables[k] = [*(b.ctypes.data for b in buffers), sets, nbytes, 0]

    def take(self, starts: Int64s, counts: Int64s, ids: Int64s, entries: Int64s, rows: Int64s, status: Bytes) -> int:
        """Serve the missing ids that are cached (cached_rows.take); return how many must be fetched."""
        if not self._sets:
            status[:] = LOST
            return int(counts.sum())
        with self.lock:
            return int(kernels.take(self._tables, starts, counts, ids, entries, rows, status))

    def keep(self, table: int, ids: Int64s, rows: Bytes, status: Bytes) -> None:
        if self._sets:
            with self.lock:
                kernels.keep(self._tables[table], ids, rows, status)
