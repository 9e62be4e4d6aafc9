"""Work on requests that were answered, aside from those that wait: a bounded queue and the one thread behind it.

Invariants: whoever answers requests offers and never waits; what finds no room is not taken. No more than
MAX_QUEUED_NBYTES of inputs wait (but one). After close() nothing is looked at any more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger("freshet.background")

MAX_QUEUED_NBYTES = 32 << 20
# A reply that has been handed over has been sent by then.
SETTLE_S = 0.005
# Rows that are looked at in one batch.
MAX_ROWS = 256


class HasNbytes(Protocol):
    """What keeps inputs. nbytes: of them."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=HasNbytes)


class BackgroundWorker(Generic[T]):
    """A queue and its thread. look: called on the thread whenever something waits; it takes that, and perhaps more."""

    def __init__(self, name: str, look: Callable[[], None]) -> None:
        self._look = look
        self._queue: deque[T] = deque()
        self._queued_nbytes = 0
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def full(self, most: int) -> bool:
        """Whether so many wait."""
        return len(self._queue) >= most

    def offer(self, item: T, most: int) -> bool:
        """Whether it was taken: there is room among `most` and for its bytes."""
        with self._lock:
            if self.full(most) or (self._queue and self._queued_nbytes + item.nbytes > MAX_QUEUED_NBYTES):
                return False
            self._queue.append(item)
            self._queued_nbytes += item.nbytes
        self._waiting.release()
        return True

    def take(self) -> T:
        """What has waited longest; for look()."""
        with self._lock:
            item = self._queue.popleft()
            self._queued_nbytes -= item.nbytes
            return item

    def take_if(self, wanted: Callable[[T], bool]) -> T | None:
        """What would be taken next, if there is something and it is wanted; for look()."""
        if not (self._queue and wanted(self._queue[0]) and self._waiting.acquire(blocking=False)):
            return None
        return self.take()

    def rest(self, seconds: float) -> bool:
        """Whether the thread is to end, at the latest known after so long; for look()."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """What waits is looked at no more."""
        self._closing.set()
        self._waiting.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._waiting.acquire()
            if self._closing.is_set():
                return
            try:
                self._look()
            except Exception:
                log.exception("%s: what was answered could not be looked at", self._thread.name)
