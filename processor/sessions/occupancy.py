"""Track how many of the shared cores are computing, and each process's heartbeat, across processes.

Each process has two words, which it alone writes and all processes read, without a lock.

computing    number of its threads that are computing. A hint: two processes may both take the last core for the length
of a batch, which then takes longer, but nothing else goes wrong.
beats        heartbeat: counts up while the process makes progress, with every run of an executable and while its event
loop runs. Several threads of the process write it, and one of two simultaneous increments may be lost; readers only
check whether it changes (serving.workers.worker_pool).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Occupancy:
    """Occupancy of a set of cores. Its own word has one writer at a time; the caller must hold the lock for that."""

    def __init__(
        self,
        cores: int,
        words: NDArray[np.int64] | None = None,
        slot: int = 0,
        beats: NDArray[np.int64] | None = None,
    ) -> None:
        """Attach to the shared words.

        Args:
            cores: Number of cores.
            words: Computing threads of each process, int64 [processes], shared by all; None for a process alone.
            slot: Index of this process's words.
            beats: Heartbeats of each process, int64 [processes], shared by all; None for a process alone.
        """
        # Reading an item of a memoryview costs a fraction of reading one of an array.
        self._words, self._beats = (
            memoryview((np.zeros(slot + 1, np.int64) if given is None else given).data) for given in (words, beats)
        )
        self._cores, self._slot, self._own = cores, slot, 0

    def change(self, threads: int) -> None:
        """Count `threads` more computing threads in this process; fewer if negative."""
        self._own += threads
        self._words[self._slot] = self._own

    def beat(self) -> None:
        """Record progress of this process."""
        self._beats[self._slot] += 1

    @property
    def crowded(self) -> bool:
        """True if more than one thread computes, in this process or in any."""
        return sum(self._words) > 1

    @property
    def spare(self) -> int:
        """Number of cores that no thread computes on."""
        return self._cores - sum(self._words)
