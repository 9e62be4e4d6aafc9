"""The cores that several processes compute on, how many of them are taken now, and who gets on.

Two words a process, written by it alone and read by all, without a lock.

computing    threads of it that are computing. A hint: two processes may both take the last core for the length of a
             batch, which then takes longer, and no more.
beats        counts up while the process gets on: with every run of an executable, and while its loop turns. Several
             threads of the process write it, and one of two increments at once may be lost; what is looked for is
             whether it moves (serving.workers.worker_pool).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Occupancy:
    """Who computes on so many cores. Its own word has one writer at a time, whose lock is the caller's."""

    def __init__(
        self,
        cores: int,
        words: NDArray[np.int64] | None = None,
        slot: int = 0,
        beats: NDArray[np.int64] | None = None,
    ) -> None:
        """words, beats: int64 [processes], shared by all; None for a process alone. seat: this process's word."""
        # Items of a memoryview come at a fraction of what those of an array take.
        self._words, self._beats = (
            memoryview((np.zeros(slot + 1, np.int64) if given is None else given).data) for given in (words, beats)
        )
        self._cores, self._slot, self._own = cores, slot, 0

    def change(self, threads: int) -> None:
        """So many threads more compute in this process; fewer, when negative."""
        self._own += threads
        self._words[self._slot] = self._own

    def beat(self) -> None:
        """This process gets on."""
        self._beats[self._slot] += 1

    @property
    def crowded(self) -> bool:
        """Whether more than one thread computes, here or in another process."""
        return sum(self._words) > 1

    @property
    def spare(self) -> int:
        """Cores that nobody computes on."""
        return self._cores - sum(self._words)
