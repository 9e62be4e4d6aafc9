"""Measure and predict the cost of batches: the cheapest bucket plan, a batch's duration, into how many parts to split.

A CostTable holds the seconds of one dense run per bucket and three coefficients of the sparse graph (per run, row and
id). Both start from a calibration and follow what sessions measure. If a run is computed in the calling thread, its
seconds are CPU time: on a shared core nearly all runs longer than a scheduler's time slice are interrupted, and short
ones nearly never. By wall-clock time large buckets would seem expensive, and full batches would run in small buckets,
for 1.5 times the CPU time, exactly when CPU time is scarce.

Invariants
- One slow run (a noisy neighbour on the machine) moves an estimate by at most RATE * LIMIT, 3 %: the relative error is
  clipped before it is averaged (Huber's estimator). A lasting change is followed within tens of runs. A fast run of a
  bucket counts for more: neighbours make nothing faster.
- A slower run beside other computing threads is ignored: cores that share caches, or are two threads of one core, make
  it longer. The parts of a split request always run beside one another, so splitting would seem more expensive than
  running whole, although it finishes a third sooner. The cost of crowding is part of the queues' measured pace
  (processor.sessions.batcher).
- A bucket that its estimate keeps out of every plan is tried again now and then (explore()), so that a disturbed
  calibration is corrected eventually.
- bucket_plan() and batch_s() read a plan that is computed for all row counts at once and replaced whole, when a
  bucket's cost differs from the plan's by more than DRIFT. That is O(max_rows * buckets), tens of microseconds, about
  once a second on a noisy machine; every other call is O(1).
- Several sessions may measure at once; one of two simultaneous updates can be lost, which only slows learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from freshet_serving.processor.kernels.bucket_plans import cheapest_bucket_plans

RATE, FASTER_RATE, LIMIT, DRIFT = 1 / 16, 1 / 4, 0.5, 0.2
# Initial sparse coefficients in seconds: only their order of magnitude matters.
RUN_S, ROW_S, ID_S = 2e-5, 1e-7, 5e-8
# How much more a split may cost in total for a shorter latency when sessions are idle.
WORTH = 1.2
# The same when none is idle: nothing, apart from rounding.
FREE = 1.01
# How long many ids or many small buckets may delay others: long compared with the overhead of a batch.
TURN_S = 0.02


@dataclass(frozen=True, slots=True)
class BucketPlans:
    """The cheapest bucket plans, by row count, for the costs `made_for`.

    Attributes:
        dense_s: Seconds of the plan for each row count.
        last: One bucket of the plan for each row count (kernels.bucket_plans).
        row_s: Seconds per row in the cheapest batch.
        bucket_plans: Cache of the plans used so far.
    """

    made_for: Mapping[int, float]
    dense_s: list[float]
    last: list[int]
    row_s: float
    bucket_plans: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def bucket_plan(self, rows: int) -> tuple[int, ...]:
        plan = self.bucket_plans.get(rows)
        if plan is None:
            buckets, rest = [], rows
            while rest > 0:
                buckets.append(self.last[rest])
                rest -= buckets[-1]
            plan = self.bucket_plans[rows] = tuple(sorted(buckets, reverse=True))
        return plan


class CostTable:
    """Costs of one version's batches, and the cheapest bucket plan for every row count.

    With costs 1: 10, 64: 100, 256: 380, a batch of 65 rows runs as 64 + 1 rather than padded to 256.
    """

    def __init__(self, cost: Mapping[int, float]) -> None:
        """Create a table from the seconds of one run per bucket, all above 0."""
        if not cost or min(cost) < 1:
            raise ValueError("buckets: expected at least one of 1 or more rows")
        self.cost = dict(sorted(cost.items()))
        self.max_rows = max(self.cost)
        self.run_s, self.row_s, self.id_s = RUN_S, ROW_S, ID_S
        self._plan = _plan(self.cost.copy())

    def copy(self) -> CostTable:
        """Return a table that begins where this one stands."""
        table = CostTable(self.cost)
        table.run_s, table.row_s, table.id_s = self.run_s, self.row_s, self.id_s
        return table

    def bucket_plan(self, rows: int) -> tuple[int, ...]:
        """Return buckets, largest first, with a sum of at least `rows`; only the last may be padded."""
        plan = self._plan
        if rows <= self.max_rows:
            return plan.bucket_plan(rows)
        whole = (rows - 1) // self.max_rows
        return (self.max_rows,) * whole + plan.bucket_plan(rows - whole * self.max_rows)

    def explore(self, rows: int) -> tuple[int, ...]:
        """Return one large padded bucket in place of several, if there is one, to be run and measured at times."""
        bucket = next((bucket for bucket in self.cost if bucket >= rows), None)
        return self.bucket_plan(rows) if bucket is None else (bucket,)

    def batch_s(self, rows: int, ids: int = 0) -> float:
        """Return the predicted seconds of one batch."""
        plan = self._plan
        if rows <= self.max_rows:
            # Asked several times a request.
            dense_s, runs = plan.dense_s[rows], len(plan.bucket_plan(rows))
        else:
            whole, rest = self._divided(rows)
            dense_s, runs = plan.dense_s[rest] + whole * self.cost[self.max_rows], whole + len(plan.bucket_plan(rest))
        return dense_s + runs * self.run_s + rows * self.row_s + ids * self.id_s

    def dense_s(self, rows: int) -> float:
        """Return the predicted seconds of the executables' runs alone."""
        whole, rest = self._divided(rows)
        return self._plan.dense_s[rest] + whole * self.cost[self.max_rows]

    def amortised_dense_s(self, rows: int) -> float:
        """Return the predicted seconds of the executables' runs for `rows` rows within well-filled batches."""
        return min(self.dense_s(rows), rows * self._plan.row_s)

    def _divided(self, rows: int) -> tuple[int, int]:
        """Return the number of full runs of the largest bucket, and the rows left."""
        whole = max(0, rows - 1) // self.max_rows
        return whole, rows - whole * self.max_rows

    def splits(self, rows: int, most: int, worth: float = WORTH) -> int:
        """Return into how many equal batches, `most` at most, to split rows for `worth` times the cost of one."""
        splits = min(most, rows)
        if splits > 1:
            bound_s = worth * self.batch_s(rows)
            while splits > 1 and splits * self.batch_s(-(-rows // splits)) > bound_s:
                splits -= max(1, splits // 4)
        return splits

    @property
    def heavy_ids(self) -> float:
        """Number of ids that take TURN_S, or as long as a run of the largest bucket if that is longer."""
        return max(TURN_S, self._plan.dense_s[-1]) / self.id_s

    def turn_rows(self, seconds: float) -> int:
        """Return the fewest rows of a batch that lasts this long and costs little more than as part of a larger one.

        The time is long compared with what a batch costs besides, which is measured nowhere.
        """
        row_s = WORTH * (self._plan.row_s + self.row_s)
        for bucket in self.cost:
            if seconds <= self.batch_s(bucket) <= row_s * bucket:
                return bucket
        return self.max_rows

    def chunk_rows(self, rows: int, ids: int, most: int) -> int:
        """Return the rows of a request to run at once: a bucket, or as many as TURN_S allows; fewer with many ids."""
        bucket = min(most, self.max_rows)
        buckets = max(1, min(most // bucket, int(TURN_S / self.batch_s(bucket))))
        light = int(rows * self.heavy_ids / ids) if ids else rows
        return max(1, min(bucket * buckets, light))

    def balanced_chunk_rows(self, rows: int, sessions: int, most: int) -> int:
        """Return the chunk size, at most `most`, with which the sessions finish a request soonest.

        Full chunks may leave one that a single session runs alone; equal chunks may need more expensive buckets.
        """
        turns = -(-rows // (sessions * most))
        even = -(-rows // (sessions * turns))
        if turns == 1:
            return even
        last_rows = min(most, rows - (turns - 1) * sessions * most)
        full_s = (turns - 1) * self.batch_s(most) + self.batch_s(last_rows)
        return even if turns * self.batch_s(even) < full_s else most

    def amortised_s(self, rows: int, ids: int = 0) -> float:
        """Return the estimated seconds of rows and ids within well-filled batches; additive over a queue."""
        return rows * (self._plan.row_s + self.row_s) + ids * self.id_s

    def record_run(self, bucket: int, seconds: float, crowded: bool = False) -> None:
        """Learn from one measured dense run of a bucket; `crowded` if other threads computed at the same time."""
        old = self.cost[bucket]
        if seconds <= 0 or (crowded and seconds > old):
            return
        rate = RATE if seconds > old else FASTER_RATE
        new = self.cost[bucket] = old * (1 + rate * _clipped(seconds / old - 1))
        if abs(new / self._plan.made_for[bucket] - 1) > DRIFT:
            self._plan = _plan(self.cost.copy())

    def record_fill(self, runs: int, rows: int, ids: int, seconds: float) -> None:
        """Learn from the measured sparse graph of one batch; correct each coefficient in proportion to its share."""
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
    """Return a ratio's estimate after one more measurement, by the same rule as a bucket's cost."""
    return ratio * (1 + RATE * _clipped(measured / ratio - 1))


def _plan(cost: Mapping[int, float]) -> BucketPlans:
    best_s, last = np.empty(max(cost) + 1), np.empty(max(cost) + 1, np.int64)
    cheapest_bucket_plans(np.array(list(cost), np.int64), np.array(list(cost.values()), np.float64), best_s, last)
    row_s = float((best_s[1:] / np.arange(1, len(best_s))).min())
    return BucketPlans(cost, best_s.tolist(), last.tolist(), row_s)
