"""Spare a store that fails: no requests for a while after failures in a row, then one at a time.

closed    every caller may send requests; open_after failures in a row open the breaker
open      no requests for pause_s
half open one caller may send a request each pause_s; success closes the breaker, failure leaves it half open

So a store that hangs costs its timeout to open_after batches, and then to one batch every pause_s.
Source: M. Nygard, Release It!, 2007.
"""

from __future__ import annotations

import threading

from freshet_serving.processor.clock import Clock

OPEN_AFTER = 3
PAUSE_S = 1.0


class CircuitBreaker:
    """Counts a store's failures in a row; thread-safe."""

    def __init__(self, clock: Clock, open_after: int = OPEN_AFTER, pause_s: float = PAUSE_S) -> None:
        self._clock, self._open_after, self._pause_s = clock, open_after, pause_s
        self._lock = threading.Lock()
        self._failures = 0
        self._ask_at_s = 0.0

    @property
    def is_open(self) -> bool:
        """True while it lets no request through, or one at a time."""
        return self._failures >= self._open_after

    def allow(self) -> bool:
        """Return True if the caller may send a request; it must then call succeeded() or failed()."""
        if self._failures < self._open_after:
            return True
        with self._lock:
            now_s = self._clock.now_s()
            if self._failures >= self._open_after and now_s < self._ask_at_s:
                return False
            self._ask_at_s = now_s + self._pause_s
            return True

    def succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._ask_at_s = self._clock.now_s() + self._pause_s
