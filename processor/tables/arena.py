"""Slots of an arena: given out, and given back once every reader that could have met them has gone.

Belongs to the table's writer. A slot that is given back waits in limbo for a flip that all readers must have reached.

Invariant: a call that raises has changed nothing. What it needs is made first; then come assignments alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import TooLarge

Int64s = NDArray[np.int64]


class SlotAllocator:
    """Numbers below `capacity`, each held by at most one owner. bump: those from here on were never given out."""

    def __init__(self, capacity: int, what: str) -> None:
        """what: names the arena in messages."""
        self.capacity = capacity
        self.bump = 0
        self._what = what
        self._free: deque[Int64s] = deque()
        self._freed = 0
        self._deferred: deque[tuple[int, Int64s]] = deque()
        self._waiting = 0

    @property
    def used(self) -> int:
        """Slots that are held; those in limbo are not."""
        return self.bump - self._freed - self._waiting

    @property
    def room(self) -> int:
        """Number of slots that allocate() can give out."""
        return self.capacity - self.bump + self._freed

    @property
    def waiting(self) -> int:
        """Slots in limbo."""
        return self._waiting

    def allocate(self, count: int) -> Int64s:
        """int64 [count]; raises TooLarge when there are not so many."""
        if count > self.room:
            raise TooLarge(f"{self._what}: the arena of {self.capacity} rows is full; publish a new version")
        fresh = max(0, count - self._freed)
        bump, freed = self.bump + fresh, self._freed - (count - fresh)
        given = np.empty(count, np.int64)
        given[:fresh] = np.arange(self.bump, bump)
        at, whole, rest = fresh, list[Int64s](), None
        for part in self._free:
            if at == count:
                break
            if len(part) > count - at:
                rest, part = part[count - at :], part[: count - at]
            else:
                whole.append(part)
            given[at : at + len(part)] = part
            at += len(part)
        while whole:
            whole.pop()
            self._free.popleft()
        if rest is not None:
            self._free[0] = rest
        self.bump, self._freed = bump, freed
        return given

    def free_deferred(self, slots: Int64s, safe_seq: int) -> None:
        """Takes slots back that may be used again once every reader has reached `safe_seq`."""
        if len(slots):
            waiting = self._waiting + len(slots)
            self._deferred.append((safe_seq, slots))
            self._waiting = waiting

    def free(self, slots: Int64s) -> None:
        """Takes slots back that no reader can have met, or can meet any more."""
        if len(slots):
            freed = self._freed + len(slots)
            self._free.append(slots)
            self._freed = freed

    def reclaim(self, oldest_seq: int) -> None:
        """Every reader has reached `oldest_seq`."""
        while self._deferred and self._deferred[0][0] <= oldest_seq:
            slots = self._deferred[0][1]
            waiting = self._waiting - len(slots)
            self.free(slots)
            self._deferred.popleft()
            self._waiting = waiting
