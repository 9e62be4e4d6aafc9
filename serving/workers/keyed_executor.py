"""Run tasks with the same key in order and tasks of different keys in parallel, on a few threads.

Invariant: at any time at most one task of a key runs, and a key's tasks run in the order of submission, also after one
that raised. A key costs nothing while it has no task.

All threads have begun before the first task: a task that waited for a thread which a shortage of memory forbids would
never run, nor would any later task of its key.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from freshet_serving.processor.standby_thread import standing_pool

log = logging.getLogger("freshet.worker")

Task = Callable[[], object]


class KeyedExecutor:
    """Runs tasks by key. Thread-safe."""

    def __init__(self, threads: int, name: str, aside: Callable[[], None] = lambda: None) -> None:
        """Start two pools of so many threads, for short and for long tasks; those for long tasks call `aside` first."""
        self._prompt = standing_pool(threads, name)
        self._long = standing_pool(threads, f"{name}-long", aside)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        # Keys with a running task; for each, the tasks to run after it and their pool.
        self._waiting: dict[Hashable, deque[tuple[Task, ThreadPoolExecutor]]] = {}

    def submit(self, key: Hashable, task: Task, long: bool = False) -> None:
        """Run a task after all earlier tasks of the same key, long ones in their own pool; log what it raises."""
        threads = self._long if long else self._prompt
        with self._lock:
            if key in self._waiting:
                self._waiting[key].append((task, threads))
                return
            self._waiting[key] = deque()
        threads.submit(self._work, key, task)

    def close(self) -> None:
        """Return when all submitted tasks are done."""
        with self._ended:
            self._ended.wait_for(lambda: not self._waiting)
        self._long.shutdown()
        self._prompt.shutdown()

    def _work(self, key: Hashable, task: Task) -> None:
        try:
            task()
        except Exception:
            log.exception("a task failed")
        finally:
            self._go_on(key)

    def _go_on(self, key: Hashable) -> None:
        with self._lock:
            waiting = self._waiting[key]
            if waiting:
                task, threads = waiting.popleft()
                threads.submit(self._work, key, task)
            else:
                del self._waiting[key]
                self._ended.notify_all()
