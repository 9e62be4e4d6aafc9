"""Allocate the slots of an arena, and reuse freed ones only when no reader can see them any more (deferred free).

Belongs to the table's writer. A slot that readers may still see waits until all of them have reached a given flip.

Invariant: a call that raises has changed nothing. Everything it needs is allocated first; only assignments follow.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import TooLarge

Int64s = NDArray[np.int64]


class SlotAllocator:
    """Hands out numbers below `capacity`, each to at most one owner; numbers from `bump` on were never used."""

    def __init__(self, capacity: int, what: str) -> None:
        """Create an allocator; errors name it `what`."""
        self.capacity = capacity
        self.bump = 0
        self._what = what
        self._free: deque[Int64s] = deque()
        self._freed = 0
        self._deferred: deque[tuple[int, Int64s]] = deque()
        self.waiting = 0
        """Number of freed slots that wait for readers."""

    @property
    def used(self) -> int:
        """Number of slots in use, without those that wait to be reused."""
        return self.bump - self._freed - self.waiting

    @property
    def room(self) -> int:
        """Number of slots that allocate() can return."""
        return self.capacity - self.bump + self._freed

    def allocate(self, count: int) -> Int64s:
        """Return `count` slots, int64 [count]; raise TooLarge if there are fewer."""
        if count > self.room:
            raise TooLarge(f"{self._what}: the arena of {self.capacity} rows is full; publish a new version")
        fresh = max(0, count - self._freed)
        bump, freed = self.bump + fresh, self._freed - (count - fresh)
        slots = np.empty(count, np.int64)
        slots[:fresh] = np.arange(self.bump, bump)
        at, whole, rest = fresh, list[Int64s](), None
        for part in self._free:
            if at == count:
                break
            if len(part) > count - at:
                rest, part = part[count - at :], part[: count - at]
            else:
                whole.append(part)
            slots[at : at + len(part)] = part
            at += len(part)
        while whole:
            whole.pop()
            self._free.popleft()
        if rest is not None:
            self._free[0] = rest
        self.bump, self._freed = bump, freed
        return slots

    def free_deferred(self, slots: Int64s, safe_seq: int) -> None:
        """Free slots that may be reused once every reader has reached the flip `safe_seq`."""
        if len(slots):
            waiting = self.waiting + len(slots)
            self._deferred.append((safe_seq, slots))
            self.waiting = waiting

    def free(self, slots: Int64s) -> None:
        """Free slots that no reader can have seen or can still see."""
        if len(slots):
            freed = self._freed + len(slots)
            self._free.append(slots)
            self._freed = freed

    def reclaim(self, oldest_seq: int) -> None:
        """Make waiting slots available, now that every reader has reached the flip `oldest_seq`."""
        while self._deferred and self._deferred[0][0] <= oldest_seq:
            slots = self._deferred[0][1]
            waiting = self.waiting - len(slots)
            self.free(slots)
            self._deferred.popleft()
            self.waiting = waiting
