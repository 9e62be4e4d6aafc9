"""The cheapest way to cover every number of rows with buckets: dynamic programming, for all of them at once."""

# mypy: ignore-errors

import numba as nb
import numpy as np


@nb.njit(nb.void(nb.int64[::1], nb.float64[::1], nb.float64[::1], nb.int64[::1]), cache=True, nogil=True)
def cheapest_bucket_plans(buckets, cost_s, best_s, last):
    """Writes, for 0 to len(best_s) - 1 rows, the least sum of costs of buckets that hold them, and one of those:
    the others hold the rows that it leaves.

    buckets: int64 [B], 1 or more each. cost_s: float64 [B]. best_s: float64 [n]; last: int64 [n].
    """
    best_s[0], last[0] = 0.0, 0
    for rows in range(1, len(best_s)):
        least_s, chosen = np.inf, 0
        for b in range(len(buckets)):
            total_s = cost_s[b] + best_s[max(0, rows - buckets[b])]
            if total_s < least_s:
                least_s, chosen = total_s, buckets[b]
        best_s[rows], last[rows] = least_s, chosen
