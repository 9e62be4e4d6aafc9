"""Predict how long requests take on a number of cores that each take all that waits. Pure.

While cores are idle often enough, requests are computed alone, and wait as in an M/G/c queue: the mean wait is
Sakasegawa's approximation, the share of requests that wait is taken for its power of the load, and the waits of those
for exponentially distributed. When there is more work than the cores could do alone, batches grow until they can: in
that state a core is free every S / c seconds, S being what such a batch takes, and the next batch is what came since.

The prediction is coarse, within a factor of three of a simulation of 1 to 40 cores. So it is multiplied by how far it
was off before (LoadMeter.compare), and only its shape matters: how fast latencies grow as cores are taken away.

Source: H. Sakasegawa, "An approximation formula L_q = alpha * rho^beta / (1 - rho)", 1977.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

TAIL = 100.0
"""One request in so many may take longer than response_p99_s()."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one group, as its cores see them: usual ones, so many a second.

    A batch of so many takes `batch_s` of one core; the largest has `most`. `correction` is a factor of predictions.
    """

    rate: float = 0.0
    batch_s: Callable[[float], float] = field(default=lambda requests: 0.0)
    most: float = 1.0
    correction: float = 1.0

    @property
    def least_busy(self) -> float:
        """Cores' worth of work in the cheapest batches."""
        return self.rate * min(self.batch_s(self.most) / self.most, self.batch_s(1.0))

    def response_p99_s(self, cores: int) -> float:
        """Return the 99th percentile from a request's arrival to its reply; infinite if the cores cannot keep up."""
        if not self.rate:
            return 0.0
        if self.least_busy >= cores:
            return math.inf
        alone_s = self.batch_s(1.0)
        busy = self.rate * alone_s / cores
        if busy < 1:
            waiting = busy ** (math.sqrt(2 * (cores + 1)) - 1)
            if waiting * TAIL <= 1:
                return self.correction * alone_s
            wait_s = alone_s / (2 * cores * (1 - busy)) * math.log(TAIL * waiting)
            # Nobody waits longer than until a core that is busy with the largest batch is free.
            wait_s = min(wait_s, self.batch_s(self.most))
        else:
            wait_s = self.batch_s(self._stable(cores)) / cores * math.log(TAIL)
        return self.correction * (wait_s + self.batch_s(min(self.most, max(1.0, self.rate * wait_s))))

    def _stable(self, cores: int) -> float:
        """Return the least requests in a batch with which the cores do the work, which they could not do alone."""
        low, high = 1.0, self.most
        for _ in range(20):
            middle = (low + high) / 2
            if self.rate * self.batch_s(middle) / middle > cores:
                low = middle
            else:
                high = middle
        return high
