"""Tasks in order where they belong together, side by side where they do not, on a few threads.

Invariant: of one key one task runs at a time, and in the order in which they were submitted. A key costs nothing while
it has no task.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], object]


class Sequences:
    """Tasks by key. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        # Of every key that a thread is at work on, what comes after that.
        self._waiting: dict[Hashable, deque[Task]] = {}

    def submit(self, key: Hashable, task: Task) -> None:
        """Has a task done after those of the same key before it; it does not raise."""
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append(task)
                return
            self._waiting[key] = deque()
        self._threads.submit(self._work, key, task)

    def close(self) -> None:
        """Returns when all that was submitted is done."""
        self._threads.shutdown()

    def _work(self, key: Hashable, task: Task) -> None:
        while True:
            task()
            with self._lock:
                waiting = self._waiting[key]
                if not waiting:
                    del self._waiting[key]
                    return
                task = waiting.popleft()
