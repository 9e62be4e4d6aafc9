"""Run a version's executables before a request does: warm every buffer, and measure what a run costs."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends import EndedRun, Executable
from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.bound_request import BatchView, BoundRequest
from freshet_serving.processor.running.buffers import Buffers, Executables
from freshet_serving.processor.running.graph_run import SubgraphRun

if TYPE_CHECKING:
    from freshet_serving.processor.tables.remote_rows import RowReader

WARM_RUNS = 3


def measure(executables: Executables, buffers: Buffers, clock: Clock) -> tuple[dict[str, dict[int, float]], bool]:
    """Return seconds of one run by subgraph and bucket, the best of a few; this also warms the executables.

    Buckets are run in turn, so that other work on the machine does not distort a single one, the smallest last: a first
    run reads its weights from memory, and they do little more. The flag is True if runs are mostly computed by the
    calling thread: then they are seconds of its core.
    """
    now_s, core_s = clock.now_s, clock.core_s
    cores: dict[tuple[str, int], float] = {}
    slept = 0
    ordered = sorted(((b, name) for name, part in executables.items() for b in part), reverse=True)
    runs = {(name, b): buffers.get(executables[name][b], name)[2] for b, name in ordered}
    costs: dict[str, dict[int, float]] = {name: {} for name in executables}
    for _ in range(WARM_RUNS):
        for (name, bucket), run in runs.items():
            before, started_s, had_s = _sleeps(), now_s(), core_s()
            run()
            cores[name, bucket] = max(1e-7, min(cores.get((name, bucket), np.inf), core_s() - had_s))
            costs[name][bucket] = max(1e-7, min(costs[name].get(bucket, np.inf), now_s() - started_s))
            slept += _sleeps() != before
    # If other threads compute, the calling thread sleeps until they are done.
    in_thread = 2 * slept < WARM_RUNS * len(runs)
    if in_thread:
        for (name, bucket), cost in cores.items():
            costs[name][bucket] = cost
    return costs, in_thread


def warm_up(
    run: SubgraphRun,
    remote: RowReader | None,
    tables: NDArray[np.int64],
    epoch: int,
    executables: Mapping[int, Executable],
    stock: Sequence[Buffers],
    requests: Sequence[BoundRequest],
) -> None:
    """Run every bucket of all buffers on rows of the requests in turn, the largest until every row was looked up."""
    whole, largest = sum([bound.rows for bound in requests]), max(executables)
    for n, buffers in enumerate(stock):
        at = 0
        for bucket in sorted(executables, reverse=True):
            for _ in range(-(-whole // largest) if n == 0 and bucket == largest else 1):
                inputs, _, call = buffers.get(executables[bucket], run.name)
                bound, spans, at = _rows_of(requests, at % whole, bucket)
                # The arrays that hold remote rows must outlive the fill.
                batch_tables = remote.batch_tables(tables, epoch, bound, spans) if remote is not None else None
                # A request that was recorded earlier, or for another scaling, is not a fault of this version.
                with suppress(BadInput, EndedRun):
                    used = tables if batch_tables is None else batch_tables.tables
                    run.fill(BatchView(used, epoch, bound, spans, buffers.counts), inputs)
                call()
        buffers.counts[:] = 0


def _rows_of(requests: Sequence[BoundRequest], at: int, rows: int) -> tuple[list[BoundRequest], NDArray[np.int64], int]:
    """Return rows of the requests, a ring from row `at` on, in the form that fill() accepts, and the next position."""
    part, spans, n, first = [], [], 0, at
    while first >= requests[n].rows:
        first -= requests[n].rows
        n += 1
    rows_left = rows
    while rows_left:
        bound = requests[n % len(requests)]
        count = min(rows_left, bound.rows - first)
        part.append(bound)
        spans.append((first, count))
        rows_left, first, n = rows_left - count, 0, n + 1
    return part, np.array(spans, np.int64), at + rows


def _sleeps() -> float:
    """Return how often this thread has slept; NaN, which differs from itself, if the system does not report it."""
    thread = getattr(resource, "RUSAGE_THREAD", None)
    return math.nan if thread is None else resource.getrusage(thread).ru_nvcsw
