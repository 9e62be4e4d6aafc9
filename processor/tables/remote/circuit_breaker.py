"""Circuit breaker of a store: after failures in a row it gets no requests for a while, then one at a time.

closed    every caller may send requests; OPEN_AFTER failures in a row open the breaker
open      no requests for PAUSE_S
half open one caller may send a request each PAUSE_S; success closes the breaker, failure leaves it half open

So a store that hangs costs its timeout to OPEN_AFTER batches, and then to one batch every PAUSE_S.
Source: M. Nygard, Release It!, 2007.
"""

from __future__ import annotations

import threading

from freshet_serving.processor.clock import Clock

OPEN_AFTER = 3
PAUSE_S = 1.0


class CircuitBreaker:
    """A circuit breaker that counts a store's failures in a row; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._ask_at_s = 0.0

    def allow(self) -> bool:
        """Return True if the caller may send a request; it must then call succeeded() or failed()."""
        if self._failures < OPEN_AFTER:
            return True
        with self._lock:
            now_s = self._clock.now_s()
            if self._failures >= OPEN_AFTER and now_s < self._ask_at_s:
                return False
            self._ask_at_s = now_s + PAUSE_S
            return True

    def succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._ask_at_s = self._clock.now_s() + PAUSE_S
