"""The cost of batches, measured: how to cover rows with buckets, how long a batch takes, in how many shares to run it.

A CostTable holds seconds of one dense run per bucket and three coefficients of the sparse graph (a run, a row, an id).
Both start from a calibration and follow what sessions measure. Where a run is the caller's own work, its seconds are
those of a core: on one that is shared, runs that are longer than a turn of the scheduler nearly all wait in their
middle and short ones nearly never, so by the clock on the wall large buckets would seem dear, and full batches would be
covered with small ones, at half as much again of a core, just when there is the least of it.

Invariants
- One slow run (a neighbour on the machine) moves an estimate by at most RATE * LIMIT, 3 %, whatever it took: the
  relative error is clipped before it is averaged (Huber's estimator). A lasting change is followed in tens of runs. A
  fast run of a bucket counts for more: neighbours make nothing faster.
- A run beside others that took longer says nothing. Cores that share caches, or are two threads of one, make it so,
  and the shares of a request always run beside one another: with their seconds for costs a request would seem dearer
  in shares than whole, where it is done sooner by a third. What a crowd costs is the pace of the queues
  (processor.sessions.batcher).
- A bucket that its estimate keeps out of every cover is tried again now and then (explore()), so that a calibration
  that was disturbed is not believed for good.
- bucket_plan() and batch_s() read a plan that is made for all row counts at once and replaced whole, when a bucket's
  cost has left the plan's by more than DRIFT. That is O(max_rows * buckets), tens of microseconds, about once a second
  on a noisy machine; every other call is O(1).
- Several sessions may measure at once; one of two simultaneous updates can be lost, which only slows learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from freshet_serving.processor.kernels.bucket_plans import cheapest_bucket_plans

RATE, FASTER_RATE, LIMIT, DRIFT = 1 / 16, 1 / 4, 0.5, 0.2
# Where the sparse coefficients start, in seconds: they only have to be of the right order.
RUN_S, ROW_S, ID_S = 2e-5, 1e-7, 5e-8
# What it may cost in all to be done sooner, by sessions that are idle.
WORTH = 1.2
# And where none is: nothing, but for rounding.
FREE = 1.01
# What others may be made to wait for by many ids, or by many small buckets: long beside what it takes to start a batch.
TURN_S = 0.02


@dataclass(frozen=True, slots=True)
class BucketPlans:
    """The cheapest covers, by row count: what each costs and one bucket of it (kernels.bucket_plans). covers: those
    that were asked for, written down. row_s: a row in the cheapest batch."""

    made_for: Mapping[int, float]
    dense_s: list[float]
    last: list[int]
    row_s: float
    bucket_plans: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def bucket_plan(self, rows: int) -> tuple[int, ...]:
        """The buckets to run, largest first."""
        found = self.bucket_plans.get(rows)
        if found is None:
            buckets, rest = [], rows
            while rest > 0:
                buckets.append(self.last[rest])
                rest -= buckets[-1]
            found = self.bucket_plans[rows] = tuple(sorted(buckets, reverse=True))
        return found


class CostTable:
    """Costs of one version's batches, and the cheapest cover of every row count.

    With costs 1: 10, 64: 100, 256: 380, a batch of 65 rows runs as 64 + 1 rather than padded to 256.
    """

    def __init__(self, cost: Mapping[int, float]) -> None:
        """cost: seconds of one run per bucket, all above 0."""
        if not cost or min(cost) < 1:
            raise ValueError("at least one bucket of 1 or more rows wanted")
        self.cost = dict(sorted(cost.items()))
        self.max_rows = max(self.cost)
        self.run_s, self.row_s, self.id_s = RUN_S, ROW_S, ID_S
        self._plan = _plan(self.cost.copy())

    def bucket_plan(self, rows: int) -> tuple[int, ...]:
        """Buckets, largest first, whose sum is at least `rows`; only the last may be padded."""
        plan = self._plan
        if rows <= self.max_rows:
            return plan.bucket_plan(rows)
        whole = (rows - 1) // self.max_rows
        return (self.max_rows,) * whole + plan.bucket_plan(rows - whole * self.max_rows)

    def explore(self, rows: int) -> tuple[int, ...]:
        """The other way to run rows that bucket_plan() runs in several buckets: padded in one, where there is one so
        large. To be run once in a while instead, and measured."""
        bucket = next((bucket for bucket in self.cost if bucket >= rows), None)
        return self.bucket_plan(rows) if bucket is None else (bucket,)

    def batch_s(self, rows: int, ids: int = 0) -> float:
        """Seconds that one batch is predicted to take."""
        plan = self._plan
        whole, rest = self._divided(rows)
        runs = whole + len(plan.bucket_plan(rest))
        return self.dense_s(rows) + runs * self.run_s + rows * self.row_s + ids * self.id_s

    def dense_s(self, rows: int) -> float:
        """Seconds of the executables' runs alone."""
        whole, rest = self._divided(rows)
        return self._plan.dense_s[rest] + whole * self.cost[self.max_rows]

    def amortised_dense_s(self, rows: int) -> float:
        """Seconds of the executables' runs for so many rows in batches with others, as large as they may be."""
        return min(self.dense_s(rows), rows * self._plan.row_s)

    def _divided(self, rows: int) -> tuple[int, int]:
        """Full runs of the largest bucket, and the rows that are left."""
        whole = max(0, rows - 1) // self.max_rows
        return whole, rows - whole * self.max_rows

    def splits(self, rows: int, most: int, worth: float = WORTH) -> int:
        """The number of batches, at most `most` and of equal size, in which so many rows may run for `worth` times
        their cost in one."""
        splits = min(most, rows)
        if splits > 1:
            bound_s = worth * self.batch_s(rows)
            while splits > 1 and splits * self.batch_s(-(-rows // splits)) > bound_s:
                splits -= max(1, splits // 4)
        return splits

    @property
    def heavy_ids(self) -> float:
        """Ids that take as long as TURN_S, or as a run of the largest bucket where that is longer."""
        return max(TURN_S, self._plan.dense_s[-1]) / self.id_s

    def chunk_rows(self, rows: int, ids: int, most: int) -> int:
        """Rows to run in one go of a request of so many rows and ids: a bucket's, or as many buckets' as TURN_S allows,
        at most `most`; fewer where its ids are heavy."""
        bucket = min(most, self.max_rows)
        buckets = max(1, min(most // bucket, int(TURN_S / self.batch_s(bucket))))
        light = int(rows * self.heavy_ids / ids) if ids else rows
        return max(1, min(bucket * buckets, light))

    def balanced_chunk_rows(self, rows: int, sessions: int, most: int) -> int:
        """Rows of a piece, at most `most`, with which so many sessions are done soonest: full pieces may leave one over
        that a session runs while the others have nothing to do; even ones may need dearer buckets."""
        turns = -(-rows // (sessions * most))
        even = -(-rows // (sessions * turns))
        if turns == 1:
            return even
        left = min(most, rows - (turns - 1) * sessions * most)
        full_s = (turns - 1) * self.batch_s(most) + self.batch_s(left)
        return even if turns * self.batch_s(even) < full_s else most

    def amortised_s(self, rows: int, ids: int = 0) -> float:
        """Seconds of so many rows and ids as a part of good batches: additive, so a queue's is the sum over it."""
        return rows * (self._plan.row_s + self.row_s) + ids * self.id_s

    def record_run(self, bucket: int, seconds: float, crowded: bool = False) -> None:
        """Learns from one dense run of a bucket that was measured. crowded: others computed at the same time."""
        old = self.cost[bucket]
        if seconds <= 0 or (crowded and seconds > old):
            return
        rate = RATE if seconds > old else FASTER_RATE
        new = self.cost[bucket] = old * (1 + rate * _clipped(seconds / old - 1))
        if abs(new / self._plan.made_for[bucket] - 1) > DRIFT:
            self._plan = _plan(self.cost.copy())

    def record_fill(self, runs: int, rows: int, ids: int, seconds: float) -> None:
        """The sparse graph of one batch was measured. What is off is put right in proportion to each part's share."""
        if seconds <= 0:
            return
        parts = runs * self.run_s, rows * self.row_s, ids * self.id_s
        predicted = sum(parts)
        step = RATE * _clipped(seconds / predicted - 1) / predicted
        self.run_s *= 1 + step * parts[0]
        self.row_s *= 1 + step * parts[1]
        self.id_s *= 1 + step * parts[2]


def _clipped(error: float) -> float:
    return max(-LIMIT, min(LIMIT, error))


def smoothed(ratio: float, measured: float) -> float:
    """A ratio's estimate after one more measurement, by the same rule as a bucket's cost."""
    return ratio * (1 + RATE * _clipped(measured / ratio - 1))


def _plan(cost: Mapping[int, float]) -> BucketPlans:
    best_s, last = np.empty(max(cost) + 1), np.empty(max(cost) + 1, np.int64)
    cheapest_bucket_plans(np.array(list(cost), np.int64), np.array(list(cost.values()), np.float64), best_s, last)
    row_s = float((best_s[1:] / np.arange(1, len(best_s))).min())
    return BucketPlans(cost, best_s.tolist(), last.tolist(), row_s)
