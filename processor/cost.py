"""Which buckets to run for a number of rows: pad up, or split, by measured cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class CostTable:
    """Cost per bucket (any unit), and the cheapest cover of every row count up to the largest bucket.

    With costs 1: 10, 64: 100, 256: 380, a batch of 65 rows runs as 64 + 1 rather than padded to 256.
    """

    def __init__(self, cost: Mapping[int, float]) -> None:
        if not cost or min(cost) < 1:
            raise ValueError("at least one bucket of 1 or more rows wanted")
        self.cost = dict(sorted(cost.items()))
        self.max_rows = max(self.cost)
        best, choice = [0.0], [0]
        for rows in range(1, self.max_rows + 1):
            total, bucket = min((self.cost[b] + best[max(0, rows - b)], b) for b in self.cost)
            best.append(total)
            choice.append(bucket)
        self._cover: list[tuple[int, ...]] = [()]
        for rows in range(1, self.max_rows + 1):
            bucket = choice[rows]
            self._cover.append(tuple(sorted((bucket, *self._cover[max(0, rows - bucket)]), reverse=True)))

    def total(self, rows: int) -> float:
        """Cost of that many rows in full batches of the bucket that is cheapest a row."""
        return rows * min(cost / bucket for bucket, cost in self.cost.items())

    def cover(self, rows: int) -> list[int]:
        """Buckets, largest first, whose sum is at least `rows`; only the last may be padded."""
        whole = max(0, rows - 1) // self.max_rows
        return [self.max_rows] * whole + list(self._cover[rows - whole * self.max_rows])
