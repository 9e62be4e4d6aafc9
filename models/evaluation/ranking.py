"""Hit rate and NDCG of the first k rows of each group, from counted scores.

Rows of a group are ranked by score, the highest first; of rows with one score, those with label 0 come first, so a
model that gives all rows the same score hits nothing that a longer list would hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from freshet_serving.models.evaluation.tally import Entries, Float64s, Int64s


@dataclass(frozen=True, slots=True)
class RankingResult:
    """Means over the groups that have a row with label 1, each group counting once; NaN without one.

    `hit_rate` is the share of the groups with such a row among the first k. `ndcg` has gains 0 and 1: the sum of
    1 / log2(place + 1) over rows with label 1 among the first k, over the largest possible sum.
    """

    hit_rate: float
    ndcg: float
    groups: int


class RankTally:
    """Hit rate and NDCG of targets by their ranks, one target a group, of which `top` places count."""

    def __init__(self, top: int) -> None:
        self.top, self.targets = top, 0
        self._hits, self._gains = 0, 0.0

    def add(self, ranks: Int64s) -> None:
        """Add targets by their ranks [n], from 1."""
        hit = ranks <= self.top
        self._hits += int(hit.sum())
        self._gains += float((1.0 / np.log2(ranks[hit] + 1.0)).sum())
        self.targets += len(ranks)

    def result(self) -> RankingResult:
        """Return the means over all targets; NaN without one."""
        count = self.targets or math.nan
        return RankingResult(self._hits / count, self._gains / count, self.targets)


def ranking(counts: Entries, k: int) -> RankingResult:
    """Rank the rows of each key; k places count.

    Rows with a weight other than 1 have no place in a ranking: with any, both figures are NaN.
    """
    nothing = RankingResult(float("nan"), float("nan"), 0)
    if not len(counts) or not np.array_equal(counts.weight, counts.rows):
        return nothing
    firsts = counts.firsts()
    positive = np.rint(counts.positive).astype(np.int64)
    after = np.cumsum(counts.rows)
    ends = after[np.append(firsts[1:], len(counts)) - 1]
    # Rows of the same group with a higher score.
    before = np.repeat(ends, np.diff(np.append(firsts, len(counts)))) - after
    last = before + counts.rows
    sums = np.append(0.0, np.cumsum(1.0 / np.log2(np.arange(2, k + 2))))

    def up_to(places: Int64s) -> Float64s:
        taken: Float64s = sums[np.minimum(places, k)]
        return taken

    gained = np.add.reduceat(up_to(last) - up_to(last - positive), firsts)
    total = np.add.reduceat(positive, firsts)
    positives = total > 0
    if not positives.any():
        return nothing
    gained, best = gained[positives], up_to(total[positives])
    return RankingResult(float((gained > 0).mean()), float((gained / best).mean()), len(best))
