"""Estimate the share of positives that come late, and weight negatives accordingly. Pure.

A row that is trained on as a negative may still become a positive. Let p be the probability that it is a positive, and
q the share of positives that come after their row's window. A row is emitted as a positive with probability (1 - q) p
and as a negative otherwise; late positives are emitted as additional rows. With

    weight(positive) = 1, in time or late        weight(negative) = (1 - p) / (1 - (1 - q) p)

the expected weights of a row are p as a positive and 1 - p as a negative, which is unbiased. This is the importance
weight of fake negatives (Ktena et al., "Addressing delayed feedback for continuous training with neural networks in CTR
prediction", RecSys 2019) extended by a window; theirs is q = 1, where every row is a negative first.

p is the served score times a correction: expected positives of recent rows over the sum of their scores. q is estimated
from delays. Rows are grouped into cohorts by their time. Each bucket of delays is estimated only from cohorts old
enough to have seen all of it: its late positives over the positives in time of the same cohorts. So young rows, whose
late positives have not come yet, do not bias q downwards. A bucket that no cohort has reached counts as empty: q is
complete once rows older than `late_s` have been emitted.

Assumption: all rows are equally likely to have a late positive. Cost: COHORTS * 2 rows of some 20 numbers.

Rejected: q = 1 as in the original, because most positives come in the window, and their rows would be trained on twice;
weights from a model of delays, because that is one more model that can be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt

Float64s = NDArray[np.float64]

COHORTS = 128
"""Number of cohorts in late_s seconds."""
BUCKETS_A_DOUBLING = 2
ENOUGH_POSITIVES = 1000.0
"""Positives needed to estimate the correction of scores."""
MOST_OFF = 10.0
MOST_PROBABLE = 0.999
IN_TIME, SCORES, LATE = 0, 1, 2
"""Indices of a cohort's figures: positives in time, sum of scores, and from LATE on late positives by delay bucket."""


class LateShare:
    def __init__(self, wait_s: float, late_s: float, said: Mapping[str, list[float]] | None = None) -> None:
        """Restore an estimate from to_json(), or start with none. Raises Corrupt.

        `late_s` is the delay up to which late positives are corrected; 0 for no corrections.
        """
        self._wait_s, self._late_s = wait_s, late_s
        buckets = max(1, math.ceil(BUCKETS_A_DOUBLING * math.log2(late_s / wait_s))) if late_s else 0
        self._edges_s = np.geomspace(wait_s, late_s, buckets + 1) if late_s else np.zeros(1)
        self._width_s = max(1.0, late_s / COHORTS)
        try:
            self._cohorts = {int(n): np.array(sums, np.float64) for n, sums in (said or {}).items()}
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Corrupt("late share: expected numbers for each cohort") from None
        size = LATE + len(self._edges_s) - 1
        if not all(sums.shape == (size,) for sums in self._cohorts.values()):
            raise Corrupt(f"late share: expected {size} numbers for each cohort")

    def to_json(self) -> dict[str, list[float]]:
        return {str(n): [float(f"{value:.9g}") for value in sums] for n, sums in sorted(self._cohorts.items())}

    def add_rows(self, times_s: Float64s, scores: Float64s, positives: Float64s) -> None:
        """Add rows emitted at the end of their window, float64 [n] each; `positives` are labels in time, or 0."""
        if not self._late_s:
            return
        for cohort, rows in self._by_cohort(times_s):
            cohort[IN_TIME] += positives[rows].sum()
            cohort[SCORES] += scores[rows].sum()

    def add_late(self, times_s: Float64s, delays_s: Float64s, positives: Float64s) -> None:
        """Add rows that became positives late, float64 [n] each: their times, and delays and labels of the outcomes."""
        buckets = np.clip(np.searchsorted(self._edges_s, delays_s, side="right") - 1, 0, len(self._edges_s) - 2)
        for cohort, rows in self._by_cohort(times_s):
            np.add.at(cohort, LATE + buckets[rows], positives[rows])

    def share(self, until_s: float) -> float:
        """Return q (0 to 1), estimated from outcomes up to until_s."""
        late = 0.0
        for bucket, edge_s in enumerate(self._edges_s[1:]):
            ripe = [sums for n, sums in self._cohorts.items() if self._ends_s(n) + edge_s <= until_s]
            if positives := sum(sums[IN_TIME] for sums in ripe):
                late += float(sum(sums[LATE + bucket] for sums in ripe) / positives)
        return late / (1 + late)

    def off(self, share: float) -> float:
        """Return the factor that corrects scores: expected positives, late ones included, over scores."""
        positives = scores = 0.0
        for n in sorted(self._cohorts, reverse=True):
            positives += float(self._cohorts[n][IN_TIME])
            scores += float(self._cohorts[n][SCORES])
            if positives >= ENOUGH_POSITIVES:
                return min(MOST_OFF, max(1 / MOST_OFF, positives / (1 - share) / max(scores, 1e-9)))
        return 1.0

    def weights(self, scores: Float64s, until_s: float) -> Float64s:
        """Return the weights of rows as negatives, float64 [n], with outcomes known up to until_s."""
        share = self.share(until_s)
        if not share:
            return np.ones(len(scores))
        p = np.clip(scores * self.off(share), 0, MOST_PROBABLE)
        weights: Float64s = (1 - p) / (1 - (1 - share) * p)
        return weights

    def forget(self, until_s: float) -> None:
        for n in [n for n in self._cohorts if self._ends_s(n) < until_s - 2 * self._late_s]:
            del self._cohorts[n]

    def _by_cohort(self, times_s: Float64s) -> list[tuple[Float64s, NDArray[np.int64]]]:
        numbers = np.floor(times_s / self._width_s).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        cohorts, starts = np.unique(numbers[order], return_index=True)
        return [
            (self._cohorts.setdefault(n, np.zeros(LATE + len(self._edges_s) - 1)), rows)
            for n, rows in zip(cohorts.tolist(), np.split(order, starts[1:]))
        ]

    def _ends_s(self, cohort: int) -> float:
        return (cohort + 1) * self._width_s
