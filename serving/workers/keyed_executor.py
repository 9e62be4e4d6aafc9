"""Tasks in order where they belong together, side by side where they do not, on a few threads.

Invariant: of one key one task runs at a time, and in the order in which they were submitted, on whichever threads. A
key costs nothing while it has no task.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

Task = Callable[[], object]


class KeyedExecutor:
    """Tasks by key. Thread-safe."""

    def __init__(self, threads: int, name: str, aside: Callable[[], None] = lambda: None) -> None:
        """aside: called first by each thread of those for long tasks, of which there are as many more."""
        self._prompt = ThreadPoolExecutor(threads, name)
        self._long = ThreadPoolExecutor(threads, f"{name}-long", initializer=aside)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        # Of every key that a thread is at work on, what comes after that, and where.
        self._waiting: dict[Hashable, deque[tuple[Task, ThreadPoolExecutor]]] = {}

    def submit(self, key: Hashable, task: Task, long: bool = False) -> None:
        """Has a task done after those of the same key before it; it does not raise."""
        threads = self._long if long else self._prompt
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append((task, threads))
                return
            self._waiting[key] = deque()
        threads.submit(self._work, key, task)

    def close(self) -> None:
        """Returns when all that was submitted is done."""
        with self._ended:
            self._ended.wait_for(lambda: not self._waiting)
        self._long.shutdown()
        self._prompt.shutdown()

    def _work(self, key: Hashable, task: Task) -> None:
        task()
        with self._lock:
            waiting = self._waiting[key]
            if waiting:
                task, threads = waiting.popleft()
                threads.submit(self._work, key, task)
            else:
                del self._waiting[key]
                self._ended.notify_all()
