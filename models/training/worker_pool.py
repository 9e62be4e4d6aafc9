"""A few threads that share a list of calls, the calling thread among them.

run() returns when all calls have returned: calls run in any order and must not conflict, which is up to the caller.
They should spend their time without the GIL, or nothing is gained. Threads sleep between runs and end with the process.
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
    """`size` threads, one of them the caller's.

    Attributes:
        size: Number of threads.
        helper_cpu_s: CPU seconds that the other threads have spent so far.
    """

    def __init__(self, size: int) -> None:
        self.size, self.helper_cpu_s = size, 0.0
        self._pool = ThreadPoolExecutor(size - 1, "crew") if size > 1 else None

    def run(self, calls: Calls[T], alone: bool = False) -> list[T]:
        """Run calls and return their results in order.

        Raises what the first failed call in that order raised, after all have ended.

        Args:
            alone: Run in the caller's thread only.
        """
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
    """Divide `rows` into at most `parts` ranges (start, stop), as even as possible, none empty.

    Args:
        parts: Most ranges.
    """
    parts = max(1, min(parts, rows))
    return [(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
