"""Shards of ids: which of a fixed number each belongs to, whatever the number of processes that share a table.

A process has a range of shards (of_process), so that what is kept by shard, as the counters of an admission filter are,
goes on with any other number of processes. The hash is the index's own (processor.kernels.index.home), of which an
index takes the high bits and shards the low ones: ids of one shard lie all over an index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARDS = 1024
ALL = range(SHARDS)


def of_process(process: int, processes: int) -> range:
    """The shards of one of so many processes, at most SHARDS: as many as each other's, or one more."""
    first, last = (-(-SHARDS * n // processes) for n in (process, process + 1))
    return range(first, last)


def processes_of(ids: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Which of so many processes has each id: int64 [n]."""
    from freshet_serving.models.embedding import kernels

    found = np.empty(len(ids), np.int64)
    kernels.shards(ids, SHARDS, found)
    return found * processes // SHARDS
