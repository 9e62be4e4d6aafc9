"""Run work on already answered requests in the background: a bounded queue and one thread.

Invariants: threads that answer requests offer items and never wait; an item that finds no room is dropped. At most
MAX_QUEUED_NBYTES of inputs wait (except for a single larger item). After close() no item is queued or processed. The
thread starts with the first item.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger("freshet.background")

MAX_QUEUED_NBYTES = 32 << 20
# Time after which a delivered reply has been sent.
SETTLE_S = 0.005
# Maximum rows scored in one batch.
MAX_ROWS = 256


class HasNbytes(Protocol):
    """An item that keeps inputs; nbytes is their size."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=HasNbytes)


class BackgroundWorker(Generic[T]):
    """A bounded queue and its thread, which calls look() when an item waits; look() takes it, and perhaps more."""

    def __init__(self, name: str, look: Callable[[], None]) -> None:
        self._look = look
        self._queue: deque[T] = deque()
        self._queued_nbytes = 0
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(0)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def full(self, most: int) -> bool:
        return len(self._queue) >= most

    def offer(self, item: T, most: int) -> bool:
        """Queue an item if fewer than `most` wait and its bytes fit; return whether it was queued."""
        with self._lock:
            if self.full(most) or (self._queue and self._queued_nbytes + item.nbytes > MAX_QUEUED_NBYTES):
                return False
            if self._closing.is_set():
                return False
            self._queue.append(item)
            self._queued_nbytes += item.nbytes
            if self._thread.ident is None:
                self._thread.start()
        self._waiting.release()
        return True

    def take(self) -> T:
        """Remove and return the oldest item; for look()."""
        with self._lock:
            item = self._queue.popleft()
            self._queued_nbytes -= item.nbytes
            return item

    def take_if(self, accepts: Callable[[T], bool]) -> T | None:
        """Remove and return the oldest item if there is one and the predicate accepts it; for look()."""
        if not (self._queue and accepts(self._queue[0]) and self._waiting.acquire(blocking=False)):
            return None
        return self.take()

    def rest(self, seconds: float) -> bool:
        """Wait for up to `seconds`; return True if the thread should end; for look()."""
        return self._closing.wait(seconds)

    def close(self) -> None:
        """Stop the thread; items still queued are dropped."""
        with self._lock:
            self._closing.set()
        self._waiting.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._waiting.acquire()
            if self._closing.is_set():
                return
            try:
                self._look()
            except Exception:
                log.exception("%s: background work on an answered request failed", self._thread.name)
