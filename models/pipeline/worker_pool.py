"""A crew: a few threads that share out a list of calls, with the thread that asks among them.

run() returns when all calls have returned: what a call may touch is settled by who calls it with what, never by order.
Calls are to spend their time without the GIL, or nothing is gained. Threads sleep between runs and end with the
process.
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
    """`size` threads, one of them the caller's. helper_cpu_s: processor seconds that the others have spent so far."""

    def __init__(self, size: int) -> None:
        self.size, self.helper_cpu_s = size, 0.0
        self._pool = ThreadPoolExecutor(size - 1, "crew") if size > 1 else None

    def run(self, calls: Calls[T], alone: bool = False) -> list[T]:
        """The results of the calls, in their order; raises what the first of them in that order raised, when all are
        through. alone: in the caller's thread."""
        if self._pool is None or alone or len(calls) < 2:
            return [call() for call in calls]
        results: list[Future[T]] = [Future() for _ in calls]
        numbers = count()

        def work() -> float:
            began_s = time.thread_time()
            # next() of a count is one step of the interpreter: no two threads get one number.
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
    """`rows` in at most so many (start, stop), as even as they go, none empty."""
    parts = max(1, min(parts, rows))
    return [(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
