"""Trays between those that fill batches and those that run them: which is free, filled, due. Pure bookkeeping.

A tray is rows that several writers fill side by side and one reader then takes whole. It is

    free ─reserve─▶ open ─full, other tag, or a reader waits─▶ closed ─last mark_filled()─▶ due ─take─▶ taken ─▶ free

Prior art: the batch that is put together in place, by claims on the ring of the LMAX Disruptor; here a claim is a span
of rows, and the ring holds numbers of trays only, so nothing of a batch is copied or allocated on the way.

Invariants
- A tray is in exactly one state. It leaves `taken` only by release().
- Spans of one tray do not overlap and lie within its capacity. All have one target and one tag, as reserved: a tray
  never holds rows of two models or two generations.
- A tray is taken only when every span of it has been filled, and then once: what is reserved is taken exactly once.
- An open tray is given to a reader that has nothing else to do, so no row waits for others to come. It is closed
  even while spans are being filled: who comes after that goes to another tray, and the reader waits for those that
  were there, never for more.
- Due trays are taken in the order in which they became so.

Costs O(1) a call, but for take(), which may look at as many open trays as there are targets. Refused: trays of one
batch each, gathered by the reader (every row is copied once more, by the thread that has the least time); waiting a
while for a tray to fill (it fills by itself while the readers are busy).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A reservation. opens: whether it is its tray's first."""

    staging: int
    first: int
    rows: int
    opens: bool


@dataclass(slots=True)
class _StagingBuffer:
    """A tray that is open, closed or due. unfilled: spans of it that are being written."""

    number: int
    target: Hashable
    tag: Hashable
    capacity: int
    rows: int = 0
    unfilled: int = 0
    closed: bool = False


class StagingPool:
    """The trays of device stages. Not thread-safe: its owner locks."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._filling: dict[int, _StagingBuffer] = {}
        self._open: dict[Hashable, _StagingBuffer] = {}
        self._due: deque[int] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything is reserved that nobody has taken."""
        return bool(self._filling or self._due)

    def reserve(self, target: Hashable, tag: Hashable, rows: int, capacity: int) -> Span | None:
        """Rows of the target's open tray, or of a free one; None where there is none: to be asked again after a
        release().

        tag: what may share a tray with others of the target. rows: at most capacity, which is the target's own.
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
        """Takes back the reservation that has opened a tray, before anybody else has one in it."""
        staging = self._filling.pop(span.staging)
        if not staging.closed:
            del self._open[staging.target]
        self._free.append(span.staging)

    def mark_filled(self, span: Span) -> bool:
        """The span's rows are written, or never will be; whether a reader could take something now."""
        staging = self._filling[span.staging]
        staging.unfilled -= 1
        if staging.closed and not staging.unfilled:
            self._make_due(staging)
        return bool(self._due) or not (staging.closed or staging.unfilled)

    def take(self) -> int | None:
        """The next tray to run, as the caller's own until release(); None: to be asked again after a mark_filled()."""
        if not self._due and self._open:
            self._close(next((s for s in self._open.values() if not s.unfilled), next(iter(self._open.values()))))
        return self._due.popleft() if self._due else None

    def release(self, number: int) -> None:
        """The tray may be filled anew."""
        self._free.append(number)

    def _close(self, staging: _StagingBuffer) -> None:
        staging.closed = True
        del self._open[staging.target]
        if not staging.unfilled:
            self._make_due(staging)

    def _make_due(self, staging: _StagingBuffer) -> None:
        del self._filling[staging.number]
        self._due.append(staging.number)
