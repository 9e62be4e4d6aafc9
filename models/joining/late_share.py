"""How many positives come late, and so how much a row counts that none has come for. Pure.

A row that is learned as a negative may still become a positive. Let p be the probability that it is one, and q the
share of the positives that come after their row's window. A row in the window is a positive with (1 - q) p and a
negative otherwise; late positives are learned as rows of their own. With

    weight(positive) = 1, in time or late        weight(negative) = (1 - p) / (1 - (1 - q) p)

the expected weights of a row are p as a positive and 1 - p as a negative: the truth. That is the importance weight of
fake negatives (Ktena et al., "Addressing delayed feedback for continuous training with neural networks in CTR
prediction", RecSys 2019) with a window; theirs is q = 1, where every row is a negative first.

p is the score that was served, times what scores were off by: expected positives of late over their scores. q is
estimated by delays: rows are cohorts by their time, and a bucket of delays is judged by the cohorts that are old enough
to have had all of it; of each bucket its late positives over the positives in time of the same cohorts. So young rows,
whose late positives have not come, do not make q small. A bucket that no cohort has reached is taken to be empty: q is
whole once rows of `late_s` ago have been emitted.

Assumed: a late positive is as likely for one row as for another. Cost: COHORTS * 2 rows of some 20 numbers.

Refused: q of 1 (the original): most positives come in the window, and their rows would be learned twice; weights from a
model of delays: one more model to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt

Float64s = NDArray[np.float64]

COHORTS = 128
"""That a row's time until late_s is divided into."""
BUCKETS_A_DOUBLING = 2
ENOUGH_POSITIVES = 1000.0
"""That tell what scores are off by."""
MOST_OFF = 10.0
MOST_PROBABLE = 0.999
IN_TIME, SCORES, LATE = 0, 1, 2
"""Of a cohort: positives in time, scores, and from LATE on late positives by delay."""


class LateShare:
    """The running estimate of one join; late_s 0: nothing is corrected."""

    def __init__(self, wait_s: float, late_s: float, said: Mapping[str, list[float]] | None = None) -> None:
        """said: what to_json() gave. Raises Corrupt."""
        self._wait_s, self._late_s = wait_s, late_s
        buckets = max(1, math.ceil(BUCKETS_A_DOUBLING * math.log2(late_s / wait_s))) if late_s else 0
        self._edges_s = np.geomspace(wait_s, late_s, buckets + 1) if late_s else np.zeros(1)
        self._width_s = max(1.0, late_s / COHORTS)
        try:
            self._cohorts = {int(n): np.array(sums, np.float64) for n, sums in (said or {}).items()}
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise Corrupt("late share: numbers of each cohort wanted") from None
        size = LATE + len(self._edges_s) - 1
        if not all(sums.shape == (size,) for sums in self._cohorts.values()):
            raise Corrupt(f"late share: {size} numbers of each cohort wanted")

    def to_json(self) -> dict[str, list[float]]:
        return {str(n): [float(f"{value:.9g}") for value in sums] for n, sums in sorted(self._cohorts.items())}

    def add_rows(self, times_s: Float64s, scores: Float64s, positives: Float64s) -> None:
        """Rows were emitted at the end of their window. positives: of each what came in time, 0 for nothing."""
        if not self._late_s:
            return
        for cohort, mine in self._by_cohort(times_s):
            cohort[IN_TIME] += positives[mine].sum()
            cohort[SCORES] += scores[mine].sum()

    def add_late(self, times_s: Float64s, delays_s: Float64s, positives: Float64s) -> None:
        """Rows of these times became positives so long after them."""
        buckets = np.clip(np.searchsorted(self._edges_s, delays_s, side="right") - 1, 0, len(self._edges_s) - 2)
        for cohort, mine in self._by_cohort(times_s):
            np.add.at(cohort, LATE + buckets[mine], positives[mine])

    def share(self, until_s: float) -> float:
        """q, by outcomes of times up to until_s: 0 to 1."""
        late = 0.0
        for bucket, edge_s in enumerate(self._edges_s[1:]):
            ripe = [sums for n, sums in self._cohorts.items() if self._ends_s(n) + edge_s <= until_s]
            if positives := sum(sums[IN_TIME] for sums in ripe):
                late += float(sum(sums[LATE + bucket] for sums in ripe) / positives)
        return late / (1 + late)

    def off(self, share: float) -> float:
        """What scores are to be multiplied by: positives, with those that are to come, over scores."""
        positives = scores = 0.0
        for n in sorted(self._cohorts, reverse=True):
            positives += float(self._cohorts[n][IN_TIME])
            scores += float(self._cohorts[n][SCORES])
            if positives >= ENOUGH_POSITIVES:
                return min(MOST_OFF, max(1 / MOST_OFF, positives / (1 - share) / max(scores, 1e-9)))
        return 1.0

    def weights(self, scores: Float64s, until_s: float) -> Float64s:
        """How much rows of these scores count as negatives, float64 [n]."""
        share = self.share(until_s)
        if not share:
            return np.ones(len(scores))
        p = np.clip(scores * self.off(share), 0, MOST_PROBABLE)
        weights: Float64s = (1 - p) / (1 - (1 - share) * p)
        return weights

    def forget(self, until_s: float) -> None:
        """Drops cohorts that tell nothing any more."""
        for n in [n for n in self._cohorts if self._ends_s(n) < until_s - 2 * self._late_s]:
            del self._cohorts[n]

    def _by_cohort(self, times_s: Float64s) -> list[tuple[Float64s, NDArray[np.int64]]]:
        numbers = np.floor(times_s / self._width_s).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        made = []
        for n, mine in zip(found.tolist(), np.split(order, starts[1:])):
            made.append((self._cohorts.setdefault(n, np.zeros(LATE + len(self._edges_s) - 1)), mine))
        return made

    def _ends_s(self, cohort: int) -> float:
        return (cohort + 1) * self._width_s
