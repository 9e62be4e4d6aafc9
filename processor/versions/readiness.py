"""What makes a server that answers unready: a change that hangs (LockWatchdog), and what is served being too old.

LockWatchdog: how long one holder has had a model's lock, as far as looks from outside can tell.

A change that hangs (a disk that does not answer, a thread that never came) holds its model's lock, and every delta,
rollback and look at the repository waits behind it, while predictions go on as if nothing were wrong. So somebody has
to say it who needs neither the lock nor the holder.

Invariants
- Nothing here can keep the lock from being let go, or taken: who holds it bumps a number, no more. Whether it is held
  at all the looks find out themselves, by trying to take it.
- A lock that many hold in turn is not held for long: another turn begins the count anew. Nor is one under which a
  version is loaded: that takes minutes for large ones, and their state says so.

Staleness: for how long what is served has not been known to be the repository's newest record, and when that is too
long.

It falls to next to nothing with every look that finds nothing newer, so one that is within its bound again stays there
for as long as the bound: no hysteresis is needed, and none is there. A version that is not served yet makes none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

LONG_S = 60.0
"""Held for so long, a lock is held for too long."""


class LockWatchdog:
    """The watch of one lock. turn() and excused() are its holder's, look() is one other thread's."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._turns = self._seen = 0
        self._excused = False
        self._since_s: float | None = None
        self.held_s = 0.0
        """Seconds, as of the last look; 0.0 where it is free."""

    def turn(self) -> None:
        """Somebody holds the lock now who did not a moment ago."""
        self._excused = False
        self._turns += 1

    @contextmanager
    def excused(self) -> Iterator[None]:
        """What takes as long as it takes."""
        self._excused = True
        try:
            yield
        finally:
            self._excused = False

    def look(self, now_s: float) -> float:
        """Looks whether the lock is held, and since when; returns `held_s`."""
        turns = self._turns
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self._since_s = None
        elif self._excused or self._since_s is None or turns != self._seen:
            self._since_s = now_s
        self._seen = turns
        self.held_s = now_s - self._since_s if self._since_s is not None else 0.0
        return self.held_s


class Staleness(NamedTuple):
    """Of one version that is served."""

    model: str
    version: int
    seconds: float

    def line(self, bound_s: float) -> str:
        """Why a server with this bound is not ready."""
        return (
            f"model {self.model!r} version {self.version}: what is served was the newest record "
            f"{self.seconds:.0f} s ago, at most {bound_s:g} s wanted"
        )


def find_stale(found: Iterable[Staleness], bound_s: float) -> Staleness | None:
    """The one that is farthest beyond the bound, the first of equals; None where all are within it."""
    beyond = [each for each in found if each.seconds > bound_s]
    return max(beyond, key=lambda each: each.seconds, default=None)
