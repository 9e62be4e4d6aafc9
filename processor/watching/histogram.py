"""Counts of what happens now and then, by bounds. Written by one thread, read by any."""

from __future__ import annotations

from bisect import bisect_left

# Seconds: half octaves from a millisecond to a minute; octaves from 8 ms to a day.
SHORT_S = tuple(2.0 ** (n // 2 - 10) * (1.5 if n % 2 else 1) for n in range(33))
LONG_S = tuple(2.0**n for n in range(-7, 17))


class Histogram:
    """counts: one a bound, of values up to it and above the one before, and one above them all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
