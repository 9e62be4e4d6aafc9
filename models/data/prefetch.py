"""Prefetching pipeline: each stage runs in a thread of its own, with a bounded queue behind it.

Invariants: items come out in order, each once. A stage works on one item at a time and is at most `depth` items ahead
of its consumer (backpressure). An error is raised where items come out, after all items before it. When close()
returns, the threads have stopped, and the source's generator is closed in the thread that ran it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

DEPTH = 2


class QueueClosed(Exception):
    """Raised when there is nothing more to take, or the consumer has stopped."""


class BoundedQueue(Generic[T]):
    """A queue of at most `size` items between two threads.

    A blocked producer continues when half of it is free: waking a thread for each item takes longer than a short one.
    """

    def __init__(self, size: int) -> None:
        self._items: deque[T] = deque()
        self._size, self._changed, self._ended = size, threading.Condition(), False

    def put(self, item: T) -> None:
        """Wait for room and append an item; raise QueueClosed if the consumer has stopped."""
        with self._changed:
            if len(self._items) >= self._size:
                self._changed.wait_for(lambda: self._ended or len(self._items) <= self._size // 2)
            if self._ended:
                raise QueueClosed
            self._items.append(item)
            if len(self._items) == 1:
                self._changed.notify_all()

    def take(self) -> T:
        """Wait for an item and return it; raise QueueClosed if there is none and none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if not self._items:
                raise QueueClosed
            item = self._items.popleft()
            if len(self._items) == self._size // 2:
                self._changed.notify_all()
            return item

    def end(self) -> None:
        """Close the queue for new items; those in it can still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class PrefetchPipeline(Iterator[Any]):
    """An iterator over items that have passed through all stages, computed ahead of the consumer."""

    def __init__(self, items: Iterable[Any], *stages: Callable[[Any], Any], depth: int = DEPTH) -> None:
        self._queues: list[BoundedQueue[Any]] = [BoundedQueue(depth) for _ in range(1 + len(stages))]
        self._error: BaseException | None = None
        sources = [iter(items), *map(_taken, self._queues)]
        works = [None, *stages]
        self._threads = [
            threading.Thread(target=self._run, args=(source, work, queue), name="ahead", daemon=True)
            for source, work, queue in zip(sources, works, self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def __next__(self) -> Any:
        try:
            return self._queues[-1].take()
        except QueueClosed:
            self._join()
            if self._error is not None:
                error, self._error = self._error, None
                raise error from None
            raise StopIteration from None

    def close(self) -> None:
        for queue in self._queues:
            queue.end()
        self._join()

    def __enter__(self) -> PrefetchPipeline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, source: Iterator[Any], work: Callable[[Any], Any] | None, queue: BoundedQueue[Any]) -> None:
        try:
            for item in source:
                queue.put(item if work is None else work(item))
        except QueueClosed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            queue.end()
            if close := getattr(source, "close", None):
                close()


def _taken(queue: BoundedQueue[Any]) -> Iterator[Any]:
    try:
        while True:
            try:
                yield queue.take()
            except QueueClosed:
                return
    finally:
        queue.end()
