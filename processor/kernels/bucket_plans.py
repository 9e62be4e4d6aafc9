"""Compute the cheapest set of buckets for every number of rows at once, by dynamic programming."""

# mypy: ignore-errors

import numba as nb
import numpy as np

from freshet_serving.processor.kernels.kernel import kernel


@kernel(nb.void(nb.int64[::1], nb.float64[::1], nb.float64[::1], nb.int64[::1]))
def cheapest_bucket_plans(buckets, cost_s, best_s, last):
    """Write, for 0 to len(best_s) - 1 rows, the least total cost of buckets that hold them, and one of those buckets.

    The other buckets of a plan are those of the rows that remain after that one; for no rows it is 0.
    """
    best_s[0], last[0] = 0.0, 0
    for rows in range(1, len(best_s)):
        least_s, chosen = np.inf, 0
        for b in range(len(buckets)):
            total_s = cost_s[b] + best_s[max(0, rows - buckets[b])]
            if total_s < least_s:
                least_s, chosen = total_s, buckets[b]
        best_s[rows], last[rows] = least_s, chosen
