"""The auto-batcher: which queued requests run together. Pure: a clock's reading comes in, batches come out.

Work-conserving: take() gives an idle session whatever is queued, at once; batches grow by themselves while all
sessions are busy. Invariants: every ticket leaves exactly once, in a batch or as expired; order of arrival is kept
per target; a batch holds tickets of one target only and at most `max_rows` rows, unless a single ticket is larger
than that (its session splits it); an expired ticket is never computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from processor.errors import Overloaded

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A queued request. target: what may share a batch. deadline_s: monotonic, or None."""

    target: Hashable
    rows: int
    payload: T
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """What one call of take() removed from the queue."""

    batch: list[Ticket[T]]
    expired: list[Ticket[T]]


class Batcher(Generic[T]):
    """A bounded FIFO of tickets that is emptied in batches. Not thread-safe: its owner locks."""

    def __init__(self, max_rows: int, max_queue_rows: int) -> None:
        self._queue: deque[Ticket[T]] = deque()
        self._max_rows, self._max_queue_rows = max_rows, max_queue_rows
        self.queue_rows = 0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, ticket: Ticket[T]) -> None:
        """Queues a ticket; raises Overloaded when the queue has no room for its rows.

        An empty queue takes any ticket, however large.
        """
        if self._queue and self.queue_rows + ticket.rows > self._max_queue_rows:
            raise Overloaded(f"queue: at most {self._max_queue_rows} rows wait, {self.queue_rows} do")
        self._queue.append(ticket)
        self.queue_rows += ticket.rows

    def take(self, now_s: float) -> Taken[T]:
        """Removes the next batch and every expired ticket met on the way; both are empty when the queue is."""
        taken: Taken[T] = Taken([], [])
        rows = 0
        while self._queue:
            head = self._queue[0]
            expired = head.deadline_s is not None and head.deadline_s <= now_s
            fits = not taken.batch or (head.target is taken.batch[0].target and rows + head.rows <= self._max_rows)
            if not expired and not fits:
                break
            self._queue.popleft()
            self.queue_rows -= head.rows
            if expired:
                taken.expired.append(head)
            else:
                taken.batch.append(head)
                rows += head.rows
        return taken
