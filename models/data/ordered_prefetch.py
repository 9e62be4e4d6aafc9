"""Tasks in turn: several run ahead on threads, and what they give comes out as if one had run after another.

Invariants:
- Items come in the order of the tasks, and of each task its own. An error comes where its item would have, and nothing
  comes after it.
- At most `threads` tasks are begun and not yet drained, and each holds items of at most `most` and one more: so much is
  held, however many tasks there are and however slow the caller is.
- Whoever stops early, by closing the generator or by an error, leaves no thread behind: each looks at `stopped` before
  it gives an item, and is waited for.
With one thread no other is started: the caller's own runs each task as it comes to it.

Cost: a thread a task, and a lock an item, so a task is to be as long as a row group and an item as thousands of rows.
Refused: one queue of all tasks, in which a slow task would hold the items of the later ones without a bound.
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
    """All items of all tasks, in order. weigh: an item's size; most: sizes that one task may be ahead. Raises what a
    task raises, and what `tasks` does, in its turn."""
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
    """The next task; one that raises in its turn where there should be one and is none."""
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
    """One task on a thread of its own, and its items that wait."""

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
