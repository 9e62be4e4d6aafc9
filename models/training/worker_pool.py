"""A few threads that share a list of calls, the calling thread among them.

run() returns when all calls have returned. Calls run in any order, must not conflict, and should release the GIL.
Threads sleep between runs and end with the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import TypeVar

T = TypeVar("T")
Calls = Sequence[Callable[[], T]]


class WorkerPool:
    """`size` threads, one of them the caller's; `helper_cpu_s` is the CPU time of the others."""

    def __init__(self, size: int) -> None:
        self.size, self.helper_cpu_s = size, 0.0
        self._pool = ThreadPoolExecutor(size - 1, "crew") if size > 1 else None

    def run(self, calls: Calls[T], alone: bool = False) -> list[T]:
        """Run calls, with `alone` in the caller's thread only; return results in order, or raise the first error."""
        if self._pool is None or alone or len(calls) < 2:
            return [call() for call in calls]
        results: list[Future[T]] = [Future() for _ in calls]
        numbers = count()

        def work() -> float:
            began_s = time.thread_time()
            # next() of a count is atomic under the GIL: no two threads get the same number.
            while (number := next(numbers)) < len(calls):
                try:
                    results[number].set_result(calls[number]())
                except BaseException as error:
                    results[number].set_exception(error)
            return time.thread_time() - began_s

        others = [self._pool.submit(work) for _ in range(min(self.size, len(calls)) - 1)]
        work()
        self.helper_cpu_s += sum(other.result() for other in others)
        return [result.result() for result in results]


def even_ranges(rows: int, parts: int) -> list[tuple[int, int]]:
    """Divide rows into at most `parts` ranges (start, stop), as even as possible, none empty."""
    parts = max(1, min(parts, rows))
    return [(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
