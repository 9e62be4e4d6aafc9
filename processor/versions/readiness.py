"""Readiness checks of a serving process: a change that hangs (LockWatchdog) and staleness.

LockWatchdog measures, from outside, for how long one holder has had a model's lock. A change that hangs (a disk that
does not respond, a thread that never started) holds its model's lock. Every delta, rollback and poll of the repository
then waits behind it, while predictions go on as if nothing were wrong. It has to be detected by a thread that needs
neither the lock nor the holder.

Invariants
- Nothing here can prevent the lock from being released or acquired: its holder only increments a number. The check
  finds out whether the lock is held by trying to acquire it.
- A lock that many holders take in turn does not count as held for long: each turn restarts the count. Nor does one
  under which a version is being loaded: that takes minutes for large versions, and their state says so.

Staleness is the time since what is served was last known to be the repository's newest record. It drops to almost zero
with every poll that finds nothing newer, so a version that is within its bound again stays there for at least as long
as the bound. Hysteresis is therefore not needed, and there is none. A version that is not served yet has no staleness.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

LONG_S = 60.0
"""A lock that is held for this many seconds is held for too long."""


class LockWatchdog:
    """A watchdog for one lock. The holder calls turn() and excused(); one other thread calls look()."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._turns = self._seen = 0
        self._excused = False
        self._since_s: float | None = None
        self.held_s = 0.0
        """Seconds for which the lock has been held, as of the last check; 0.0 if it is free."""

    def turn(self) -> None:
        """Record that the lock has a new holder."""
        self._excused = False
        self._turns += 1

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Exempt the enclosed work, which may take any length of time."""
        self._excused = True
        try:
            yield
        finally:
            self._excused = False

    def look(self, now_s: float) -> float:
        """Check whether the lock is held, and since when; return `held_s`."""
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
    """Staleness of one served version.

    Attributes:
        model: Name of the model.
        version: Number of the version.
        seconds: Seconds since it was last known to serve the newest record.
    """

    model: str
    version: int
    seconds: float

    def line(self, bound_s: float) -> str:
        """Return the reason why a server with this bound is not ready."""
        return (
            f"model {self.model!r} version {self.version} is {self.seconds:.0f} s stale (max_staleness_s = {bound_s:g})"
        )


def find_stale(found: Iterable[Staleness], bound_s: float) -> Staleness | None:
    """Return the version farthest beyond the bound (the first of equals), or None if all are within it.

    Args:
        found: Staleness of each served version.
        bound_s: Largest allowed staleness in seconds.
    """
    beyond = [each for each in found if each.seconds > bound_s]
    return max(beyond, key=lambda each: each.seconds, default=None)
