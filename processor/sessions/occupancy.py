"""The cores that several processes compute on, and how many of them are taken now.

One word a process, written by it alone and read by all: threads of it that are computing. It is a hint, read without
a lock: two processes may both take the last core for the length of a batch, which then takes longer, and no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Occupancy:
    """Who computes on so many cores. Its own word has one writer at a time, whose lock is the caller's."""

    def __init__(self, cores: int, words: NDArray[np.int64] | None = None, seat: int = 0) -> None:
        """words: int64 [processes], shared by all; None for a process alone. seat: this process's word."""
        own = np.zeros(1, np.int64) if words is None else words
        # Items of a memoryview come at a fraction of what those of an array take.
        self._words, self._cores, self._seat, self._own = memoryview(own.data), cores, seat, 0

    def change(self, threads: int) -> None:
        """So many threads more compute in this process; fewer, when negative."""
        self._own += threads
        self._words[self._seat] = self._own

    @property
    def spare(self) -> int:
        """Cores that nobody computes on."""
        return self._cores - sum(self._words)
