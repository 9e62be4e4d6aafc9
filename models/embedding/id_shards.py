"""Assign ids to a fixed number of shards, independent of the number of processes that share a table.

A process owns a range of shards (of_process), so data kept by shard, such as the counters of an admission filter, stay
valid for any other number of processes. The hash is the index's own (processor.kernels.index.home): an index uses its
high bits and shards its low ones, so ids of one shard spread over the whole index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARDS = 1024
ALL = range(SHARDS)


def of_process(process: int, processes: int) -> range:
    """Return the shards of a process; the numbers of shards of two processes differ by at most one.

    Args:
        process: Number of the process, from 0.
        processes: Number of processes, at most SHARDS.
    """
    first, last = (-(-SHARDS * n // processes) for n in (process, process + 1))
    return range(first, last)


def processes_of(ids: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Return the process that owns each id, int64 [n].

    Args:
        ids: int64 [n].
        processes: Number of processes, at most SHARDS.
    """
    from freshet_serving.models.embedding import kernels

    found = np.empty(len(ids), np.int64)
    kernels.shards(ids, SHARDS, found)
    return found * processes // SHARDS
