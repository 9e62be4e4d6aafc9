"""Track staging buffers between the threads that fill batches and those that run them. Pure bookkeeping.

A staging buffer holds rows that several writers fill side by side and one reader then takes whole. Its states:

    free ─reserve─▶ open ─full, other tag, or a reader waits─▶ closed ─last mark_filled()─▶ due ─take─▶ taken ─▶ free

Invariants
- A buffer is in exactly one state. It leaves `taken` only by release().
- Spans of one buffer do not overlap and lie within its capacity. All have one target and one tag, as reserved: a buffer
  never holds rows of two models or two generations.
- A buffer is taken only when each of its spans has been filled, and then once.
- An idle reader is given an open buffer, so no row waits for others to arrive. The buffer is closed even while spans
  are being filled: the reader waits for the spans that exist, never for more.
- Due buffers are taken in the order in which they became due.

Costs O(1) per call, except for take(), which may scan as many open buffers as there are targets. Source: batches are
assembled in place by claims on a ring, as in the LMAX Disruptor. Rejected: one buffer per batch, gathered by the reader
(every row is copied once more, by the busiest thread); waiting a while for a buffer to fill (buffers fill by themselves
while the readers are busy).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from freshet_serving.processor.errors import first_of


class Span(NamedTuple):
    """A reservation of rows in a staging buffer; `opens` if it is the buffer's first."""

    staging: int
    first: int
    rows: int
    opens: bool


@dataclass(slots=True)
class _StagingBuffer:
    """An open, closed or due staging buffer; unfilled counts its spans that are still being written."""

    number: int
    target: Hashable
    tag: Hashable
    capacity: int
    rows: int = 0
    unfilled: int = 0
    closed: bool = False


class StagingPool:
    """The staging buffers of device stages. Not thread-safe: its owner locks."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._filling: dict[int, _StagingBuffer] = {}
        self._open: dict[Hashable, _StagingBuffer] = {}
        self._due: deque[int] = deque()

    @property
    def busy(self) -> bool:
        """True if rows are reserved or due that no reader has taken."""
        return bool(self._filling or self._due)

    def reserve(self, target: Hashable, tag: Hashable, rows: int, capacity: int) -> Span | None:
        """Reserve rows, at most `capacity`, in the target's open buffer or in a free one.

        Spans of one target and tag may share a buffer. None if no buffer is free: try again after a release().
        """
        staging = self._open.get(target)
        if staging is not None and (staging.tag != tag or staging.rows + rows > capacity):
            self._close(staging)
            staging = None
        opens = staging is None
        if staging is None:
            if not self._free:
                return None
            staging = _StagingBuffer(self._free.pop(), target, tag, capacity)
            self._filling[staging.number] = self._open[target] = staging
        span = Span(staging.number, staging.rows, rows, opens)
        staging.rows += rows
        staging.unfilled += 1
        if staging.rows == capacity:
            self._close(staging)
        return span

    def abandon(self, span: Span) -> None:
        """Undo the reservation that opened a buffer, before there is another one in it."""
        staging = self._filling.pop(span.staging)
        if not staging.closed:
            del self._open[staging.target]
        self._free.append(span.staging)

    def mark_filled(self, span: Span) -> bool:
        """Mark a span's rows as written, or as never to be; return True if a reader could take a buffer now."""
        staging = self._filling[span.staging]
        staging.unfilled -= 1
        if staging.closed and not staging.unfilled:
            self._make_due(staging)
        return bool(self._due) or not (staging.closed or staging.unfilled)

    def take(self) -> int | None:
        """Take the next buffer to run; it is the caller's until release(). None: try again after a mark_filled()."""
        if not self._due and self._open:
            self._close(next((s for s in self._open.values() if not s.unfilled), first_of(self._open.values())))
        return self._due.popleft() if self._due else None

    def release(self, number: int) -> None:
        self._free.append(number)

    def _close(self, staging: _StagingBuffer) -> None:
        staging.closed = True
        del self._open[staging.target]
        if not staging.unfilled:
            self._make_due(staging)

    def _make_due(self, staging: _StagingBuffer) -> None:
        del self._filling[staging.number]
        self._due.append(staging.number)
