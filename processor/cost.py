"""What a batch costs, measured: how to cover its rows with buckets, how long it takes, what it is worth splitting.

A CostTable holds seconds of one dense run per bucket and three coefficients of the sparse graph (a run, a row, an id).
Both start from a calibration and follow what sessions measure.

Invariants
- One slow run (a neighbour on the machine) moves an estimate by at most RATE * LIMIT, 3 %, whatever it took: the
  relative error is clipped before it is averaged (Huber's estimator). A lasting change is followed in tens of runs.
- cover() and predict() read a plan that is made for all row counts at once and replaced whole, when a bucket's cost
  has left the plan's by more than DRIFT. That is O(max_rows * buckets), a fraction of a millisecond, and rare; every
  other call is O(1).
- Several sessions may measure at once; one of two simultaneous updates can be lost, which only slows learning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RATE, LIMIT, DRIFT = 1 / 16, 0.5, 0.2
# Where the sparse coefficients start, in seconds: they only have to be of the right order.
RUN_S, ROW_S, ID_S = 2e-5, 1e-7, 5e-8
# A part is worth its own run when its rows cost at most this much more than rows do in the best of batches.
WORTH = 1.2


@dataclass(frozen=True, slots=True)
class Plan:
    """By row count: the buckets to run and their cost. row_s: a row in the cheapest batch. grain: fewest rows that are
    nearly as cheap a row as that."""

    made_for: Mapping[int, float]
    cover: list[tuple[int, ...]]
    dense_s: list[float]
    row_s: float
    grain: int


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

    @property
    def grain(self) -> int:
        """Fewest rows that are worth a batch of their own while sessions are free."""
        return self._plan.grain

    def cover(self, rows: int) -> tuple[int, ...]:
        """Buckets, largest first, whose sum is at least `rows`; only the last may be padded."""
        plan = self._plan
        if rows <= self.max_rows:
            return plan.cover[rows]
        whole = (rows - 1) // self.max_rows
        return (self.max_rows,) * whole + plan.cover[rows - whole * self.max_rows]

    def predict(self, rows: int, ids: int = 0) -> float:
        """Seconds of one batch."""
        plan = self._plan
        whole = max(0, rows - 1) // self.max_rows
        rest = rows - whole * self.max_rows
        dense_s = plan.dense_s[rest] + whole * self.cost[self.max_rows]
        return dense_s + (whole + len(plan.cover[rest])) * self.run_s + rows * self.row_s + ids * self.id_s

    def share(self, rows: int, ids: int = 0) -> float:
        """Seconds of so many rows and ids as a part of good batches: additive, so a queue's is the sum over it."""
        return rows * (self._plan.row_s + self.row_s) + ids * self.id_s

    def ran(self, bucket: int, seconds: float) -> None:
        """One dense run was measured."""
        if seconds <= 0:
            return
        old = self.cost[bucket]
        new = self.cost[bucket] = old * (1 + RATE * _clipped(seconds / old - 1))
        if abs(new / self._plan.made_for[bucket] - 1) > DRIFT:
            self._plan = _plan(self.cost.copy())

    def filled(self, runs: int, rows: int, ids: int, seconds: float) -> None:
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


def follow(ratio: float, measured: float) -> float:
    """A ratio's estimate after one more measurement, by the same rule as a bucket's cost."""
    return ratio * (1 + RATE * _clipped(measured / ratio - 1))


def _plan(cost: Mapping[int, float]) -> Plan:
    max_rows = max(cost)
    best, cover = [0.0], [()]  # type: list[float], list[tuple[int, ...]]
    for rows in range(1, max_rows + 1):
        total, bucket = min((cost[b] + best[max(0, rows - b)], b) for b in cost)
        best.append(total)
        cover.append(tuple(sorted((bucket, *cover[max(0, rows - bucket)]), reverse=True)))
    row_s = min(total / rows for rows, total in enumerate(best) if rows)
    grain = next(rows for rows, total in enumerate(best) if rows and total / rows <= WORTH * row_s)
    return Plan(cost, cover, best, row_s, grain)
