"""Assign ids to a fixed number of shards, independent of the number of processes that share a table.

A process owns a range of shards, so data by shard, such as counters of admission filters, stay valid for any number of
processes. The hash is the index's (processor.kernels.index.home), which uses its high bits and shards its low ones: ids
of one shard spread over the whole index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARDS = 1024
ALL = range(SHARDS)


def of_process(process: int, processes: int) -> range:
    """Return the shards of a process, of at most SHARDS; two processes differ by at most one shard."""
    first, last = (-(-SHARDS * n // processes) for n in (process, process + 1))
    return range(first, last)


def processes_of(ids: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """Return the process that owns each id, int64 [n]."""
    from freshet_serving.models.embedding import kernels

    shard_of_each = np.empty(len(ids), np.int64)
    kernels.shards(ids, SHARDS, shard_of_each)
    return shard_of_each * processes // SHARDS
