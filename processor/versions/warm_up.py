"""Warm-up of a version: its recorded requests are run through every bucket of every session's own buffers before a
request is sent to it, so that pages, kernels and caches are met by nobody who waits.

It is done in the thread of changes, on buffers that no session has yet, and nothing of it is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.base import Executable
from freshet_serving.processor.backends.buffers import Buffers
from freshet_serving.processor.features.plan import BoundRequest, NonFiniteInput, SparsePlan
from freshet_serving.processor.tables.remote.reader import RemoteReader


def warm_up(
    plan: SparsePlan,
    remote: RemoteReader | None,
    tables: NDArray[np.int64],
    epoch: int,
    executables: Mapping[int, Executable],
    stock: Sequence[Buffers],
    requests: Sequence[BoundRequest],
) -> None:
    """Runs every bucket of all buffers once, on rows of the requests, one after another and over again; the largest
    bucket of the first until every row has been looked up. executables: by bucket. tables, remote: see State, Replica.
    """
    whole, largest = sum([bound.rows for bound in requests]), max(executables)
    for n, buffers in enumerate(stock):
        at = 0
        for bucket in sorted(executables, reverse=True):
            for _ in range(-(-whole // largest) if n == 0 and bucket == largest else 1):
                x, _, run = buffers.get(executables[bucket])
                bound, spans, at = _rows_of(requests, at % whole, bucket)
                # What remote rows stand in must outlive the fill.
                batch_tables = remote.batch_tables(tables, epoch, bound, spans) if remote is not None else None
                # What was recorded before, or for another scaling, is no fault of this version.
                with suppress(NonFiniteInput):
                    plan.fill(
                        tables if batch_tables is None else batch_tables.tables, epoch, bound, spans, x, buffers.counts
                    )
                run()
        buffers.counts[:] = 0


def _rows_of(requests: Sequence[BoundRequest], at: int, rows: int) -> tuple[list[BoundRequest], NDArray[np.int64], int]:
    """So many rows of requests that lie one after another in a ring, from row `at` on: as fill() takes them, and where
    the next row is."""
    part, spans, n, first = [], [], 0, at
    while first >= requests[n].rows:
        first -= requests[n].rows
        n += 1
    left = rows
    while left:
        bound = requests[n % len(requests)]
        count = min(left, bound.rows - first)
        part.append(bound)
        spans.append((first, count))
        left, first, n = left - count, 0, n + 1
    return part, np.array(spans, np.int64), at + rows
