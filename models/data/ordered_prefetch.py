"""Run tasks ahead on threads and yield their items as if the tasks had run one after another.

Invariants:
- Items come in the order of the tasks, and within a task in its own order. An error is raised where its item would have
  come, and nothing follows it.
- At most `threads` tasks are started and not yet drained, each with items of at most `most` plus one item, however slow
  the caller is.
- A caller that stops early leaves no thread behind: each checks `_stopped` before it queues an item, and is joined.
With one thread no other is started: the caller's thread runs each task in turn.

Cost: one thread a task and one lock an item, so a task should be as long as a row group and an item thousands of rows.
Rejected: one queue for all tasks, in which a slow task would hold up an unbounded number of items of later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from threading import Condition, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
Task = Callable[[], Generator[T]]


def ordered_prefetch(tasks: Iterator[Task[T]], threads: int, weigh: Callable[[T], int], most: int) -> Generator[T]:
    """Yield all items of all tasks, in order; an exception of the iterator itself is raised in its turn as well.

    At most `threads` tasks run ahead, each by items of a total size of `most`, as `weigh` says.
    """
    begun: deque[_PrefetchTask[T]] = deque()
    try:
        while True:
            while len(begun) < (threads if threads > 1 else 0) and (task := _next(tasks)):
                begun.append(_PrefetchTask(task, weigh, most))
            if begun:
                yield from begun[0].items()
                begun.popleft()
            elif task := _next(tasks):
                with closing(task()) as items:
                    yield from items
            else:
                return
    finally:
        for ahead in begun:
            ahead.stop()
        for ahead in begun:
            ahead.thread.join()


def _next(tasks: Iterator[Task[T]]) -> Task[T] | None:
    """Return the next task, or one that raises the iterator's error in its turn; None at the end."""
    try:
        return next(tasks, None)
    except Exception as error:
        return _raising(error)


def _raising(error: Exception) -> Task[T]:
    def task() -> Generator[T]:
        yield from ()
        raise error

    return task


class _PrefetchTask(Generic[T]):
    def __init__(self, task: Task[T], weigh: Callable[[T], int], most: int) -> None:
        self._task, self._weigh, self._most = task, weigh, most
        self._waiting: deque[T] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._finished = self._stopped = False
        self._changed = Condition()
        self.thread = Thread(target=self._run, name="freshet-reading", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with closing(self._task()) as items:
                for item in items:
                    with self._changed:
                        self._changed.wait_for(lambda: self._held < self._most or not self._waiting or self._stopped)
                        if self._stopped:
                            return
                        self._waiting.append(item)
                        self._held += self._weigh(item)
                        self._changed.notify()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify()

    def items(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._finished)
                if not self._waiting:
                    break
                item = self._waiting.popleft()
                self._held -= self._weigh(item)
                self._changed.notify()
            yield item
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
