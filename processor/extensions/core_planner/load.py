"""Estimate the load of one group from its counters and the costs of its batches. Pure.

The rate is an average over some turns and three of its standard deviations, so a usual fluctuation changes no plan; a
turn with more than that counts at once. Requests that were refused count: a group that has too few cores refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from freshet_serving.processor.extensions.core_planner.queueing import Load
from freshet_serving.processor.watching import SessionStats

AVERAGED = 0.3
"""Weight of the newest turn in averages."""
MARGIN = 3.0
"""Standard deviations that are added to the average rate."""
FORGOTTEN = 0.1
"""Weight of a turn in which requests took less than predicted."""
FIRST_CORRECTION, LARGEST_CORRECTION = 1.5, 4.0
"""Predictions are multiplied by the first until they can be compared, and never by more than the largest."""


class LoadMeter:
    """The load of one group, turn by turn; predictions are multiplied by `correction`."""

    def __init__(self) -> None:
        self.correction = FIRST_CORRECTION
        self._before: SessionStats | None = None
        self._mean = self._variance = 0.0

    def turn(self, work: SessionStats, seconds: float, batch_s: Callable[[float], float], most: float) -> Load:
        """Return the load after one more turn, by counts since the start; `batch_s` and `most` are those of Load."""
        before, self._before = self._before, work
        if before is None or seconds <= 0:
            return Load()
        refused = ("refused_full", "refused_late", "expired")
        arrived = sum(getattr(work, name) - getattr(before, name) for name in ("requests", *refused))
        rate = arrived / seconds
        # No turn is steadier than chance: a count of independent requests varies by its square root.
        self._variance += AVERAGED * ((rate - self._mean) ** 2 - self._variance)
        self._mean += AVERAGED * (rate - self._mean)
        deviation = math.sqrt(max(self._variance, self._mean / seconds))
        expected = max(rate, self._mean + MARGIN * deviation) if self._mean else 0.0
        return Load(expected, batch_s, most, self.correction)

    def compare(self, load: Load, cores: int, measured_p99_s: float) -> None:
        """Learn from what requests took in a turn: at once if it was more than predicted, slowly if it was less."""
        predicted_s = load.response_p99_s(cores)
        if not 0 < predicted_s < math.inf:
            return
        ratio = min(LARGEST_CORRECTION, max(1 / LARGEST_CORRECTION, load.correction * measured_p99_s / predicted_s))
        self.correction += (1.0 if ratio > self.correction else FORGOTTEN) * (ratio - self.correction)
