"""Simulate cores that serve session groups: the kernel of loadtest.bench.core_simulation.

A pool of cores serves one or more groups. An idle core takes the group whose first request has waited longest, and of
that group as many requests as a batch may have, as sessions do (processor.sessions.batcher).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

COUNT, LATE, DROPPED, BATCHES, BUSY_S, WAITED_S = range(6)
"""Columns of a group's sums."""
BINS, LEAST_S, A_DECADE = 400, 1e-5, 50
"""Bins of latencies: logarithmic, from LEAST_S on, so many for each power of ten."""


@njit(cache=True)
def simulate(
    until: float,
    times: NDArray[np.float64],
    groups: NDArray[np.int64],
    rows: NDArray[np.int64],
    waiting: NDArray[np.int64],
    free_at: NDArray[np.float64],
    costs: NDArray[np.float64],
    most_rows: int,
    budgets: NDArray[np.float64],
    timeout_s: float,
    sums: NDArray[np.float64],
    bins: NDArray[np.int64],
) -> int:  # fmt: skip
    """Serve the requests of one pool until a time; return how many of them still wait, whose numbers `waiting` has.

    Args:
        until: Batches begin before this time.
        times: float64 [n], when requests come, ascending; those that waited before come first.
        groups: int64 [n], the group of each.
        rows: int64 [n], its rows.
        waiting: int64 [n], written.
        free_at: float64 [cores], when each core is free; changed.
        costs: float64 [groups, rows + 1], seconds of a batch.
        most_rows: Rows of a batch, unless one request has more.
        budgets: float64 [groups], the latency that is not late.
        timeout_s: A request that has waited so long is dropped.
        sums: float64 [groups, 6], added to.
        bins: int64 [groups, BINS], added to.
    """
    count, number_of_groups = len(times), len(budgets)
    following = np.full(count, -1, np.int64)
    heads = np.full(number_of_groups, -1, np.int64)
    tails = np.full(number_of_groups, -1, np.int64)
    came = queued = 0
    while len(free_at):
        core = int(np.argmin(free_at))
        start = free_at[core]
        if queued == 0:
            if came == count:
                break
            start = max(start, times[came])
        if start >= until:
            break
        while came < count and times[came] <= start:
            group = groups[came]
            if heads[group] < 0:
                heads[group] = came
            else:
                following[tails[group]] = came
            tails[group] = came
            came += 1
            queued += 1
        first = -1
        for group in range(number_of_groups):
            if heads[group] >= 0 and (first < 0 or times[heads[group]] < times[heads[first]]):
                first = group
        taken, request = 0, heads[first]
        while request >= 0 and (taken == 0 or taken + rows[request] <= most_rows):
            if start - times[request] > timeout_s:
                sums[first, COUNT] += 1
                sums[first, LATE] += 1
                sums[first, DROPPED] += 1
                bins[first, BINS - 1] += 1
            else:
                taken += rows[request]
            request = following[request]
        end = start
        if taken:
            whole, rest = divmod(taken, costs.shape[1] - 1)
            seconds = whole * costs[first, costs.shape[1] - 1] + costs[first, rest]
            end = start + seconds
            sums[first, BATCHES] += 1
            sums[first, BUSY_S] += seconds
        member = heads[first]
        while member != request:
            if start - times[member] <= timeout_s:
                latency = end - times[member]
                sums[first, COUNT] += 1
                sums[first, LATE] += latency > budgets[first]
                sums[first, WAITED_S] += start - times[member]
                place = int(np.log10(max(latency, LEAST_S) / LEAST_S) * A_DECADE)
                bins[first, min(BINS - 1, place)] += 1
            member = following[member]
            queued -= 1
        heads[first] = request
        free_at[core] = end
    left = 0
    for request in range(came):
        # Marked below: a request that was taken is no longer reached from its group's head.
        waiting[request] = -1
    for group in range(number_of_groups):
        request = heads[group]
        while request >= 0:
            waiting[request] = request
            request = following[request]
    for request in range(count):
        if request >= came or waiting[request] >= 0:
            waiting[left] = request
            left += 1
    return left
