"""Choose the buckets (batch sizes to compile for) from the sizes of recorded requests.

A request of r rows runs in the smallest bucket of at least r rows and costs what that bucket costs, padding included; a
request larger than the largest bucket is split into full buckets and a rest. bucket_list() minimises the sum over the
sample by dynamic programming over the distinct sizes: an optimal bucket is always one of them, because a bucket between
two sizes can shrink to the lower one at no loss, as long as a smaller bucket costs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from freshet_serving.processor.errors import BadInput

MAX_SIZES = 512
MAX_ROWS = 1 << 20

Cost = Callable[[int], float]
"""Cost of one run with this many rows; never falls with the rows."""


def bucket_list(rows: Sequence[int], most: int, cost: Cost, max_bucket: int = 1024) -> list[int]:
    """Return the at most `most` buckets with the least expected cost, ascending, for a sample of requests' rows.

    With more than MAX_SIZES distinct sizes, neighbouring sizes are rounded up to one. Raise BadInput if the sample is
    empty or has invalid sizes.
    """
    sizes, counts = _sizes(rows, most, max_bucket)
    n = len(sizes)
    costs = [cost(size) for size in sizes]
    total = np.concatenate([[0], np.cumsum(counts)])
    # best[i]: cost of the first i sizes with the buckets so far, the largest of which is sizes[i - 1].
    best = [0.0] + [float(total[i] * costs[i - 1]) for i in range(1, n + 1)]
    cuts: list[list[int]] = [[0] * (n + 1)]
    for _ in range(min(most, n) - 1):
        new, cut = best.copy(), [0] * (n + 1)
        for i in range(2, n + 1):
            options = [best[j] + float(total[i] - total[j]) * costs[i - 1] for j in range(1, i)]
            j = int(np.argmin(options))
            if options[j] < new[i]:
                new[i], cut[i] = options[j], j + 1
        cuts.append(cut)
        best = new
    chosen, i = [], n
    for cut in reversed(cuts):
        if cut[i] or cut is cuts[0]:
            chosen.append(sizes[i - 1])
            i = cut[i]
    return sorted(chosen)


def interpolated(costs: Mapping[int, float]) -> Cost:
    """Interpolate measured costs: linear between them and beyond the last, and never below the cost of fewer rows."""
    at = sorted(costs)
    if not at:
        raise BadInput("costs: expected at least one")
    level = np.maximum.accumulate([costs[rows] for rows in at])

    def cost(rows: int) -> float:
        if rows <= at[-1] or len(at) == 1:
            return float(np.interp(rows, at, level)) if rows <= at[-1] else float(level[-1] * rows / at[-1])
        slope = (level[-1] - level[-2]) / (at[-1] - at[-2])
        return float(level[-1] + slope * (rows - at[-1]))

    return cost


def _sizes(rows: Sequence[int], most: int, max_bucket: int) -> tuple[list[int], np.ndarray]:
    """Return the distinct sizes, ascending, and their counts.

    A size above max_bucket counts as full buckets and a rest.
    """
    if most < 1 or max_bucket < 1:
        raise BadInput(f"buckets: expected 1 or more of 1 or more rows, got {most} of {max_bucket}")
    sample = np.asarray(rows, np.int64).reshape(-1)
    if not sample.size:
        raise BadInput("sample: expected at least one request")
    if sample.min() < 1 or sample.max() > MAX_ROWS:
        raise BadInput(f"sample: expected 1 to {MAX_ROWS} rows a request, got {sample.min()} to {sample.max()}")
    if (sample > max_bucket).any():
        whole, rest = np.divmod(sample[sample > max_bucket], max_bucket)
        sample = np.concatenate([sample[sample <= max_bucket], rest[rest > 0], np.repeat(max_bucket, int(whole.sum()))])
    sizes, counts = np.unique(sample, return_counts=True)
    if len(sizes) > MAX_SIZES:
        step = -(-len(sizes) // MAX_SIZES)
        group = np.arange(len(sizes)) // step
        last = np.append(np.flatnonzero(np.diff(group)), len(sizes) - 1)
        sizes, counts = sizes[last], np.bincount(group, counts).astype(np.int64)
    return [int(size) for size in sizes], counts
