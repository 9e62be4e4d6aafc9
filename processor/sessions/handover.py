"""Trays between those that fill batches and those that run them: which is free, filled, due. Pure bookkeeping.

A tray is rows that several writers fill side by side and one reader then takes whole. It is

    free ─reserve─▶ open ─full, other tag, or a reader waits─▶ closed ─last filled()─▶ due ─take─▶ taken ─▶ free

Prior art: the batch that is put together in place, by claims on the ring of the LMAX Disruptor; here a claim is a span
of rows, and the ring holds numbers of trays only, so nothing of a batch is copied or allocated on the way.

Invariants
- A tray is in exactly one state. It leaves `taken` only by give_back().
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

    tray: int
    first: int
    rows: int
    opens: bool


@dataclass(slots=True)
class _Tray:
    """A tray that is open, closed or due. unfilled: spans of it that are being written."""

    number: int
    target: Hashable
    tag: Hashable
    capacity: int
    rows: int = 0
    unfilled: int = 0
    closed: bool = False


class Handover:
    """The trays of device stages. Not thread-safe: its owner locks."""

    def __init__(self, trays: int) -> None:
        self._free = list(range(trays))
        self._filling: dict[int, _Tray] = {}
        self._open: dict[Hashable, _Tray] = {}
        self._due: deque[int] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything is reserved that nobody has taken."""
        return bool(self._filling or self._due)

    def reserve(self, target: Hashable, tag: Hashable, rows: int, capacity: int) -> Span | None:
        """Rows of the target's open tray, or of a free one; None where there is none: to be asked again after a
        give_back().

        tag: what may share a tray with others of the target. rows: at most capacity, which is the target's own.
        """
        tray = self._open.get(target)
        if tray is not None and (tray.tag != tag or tray.rows + rows > capacity):
            self._close(tray)
            tray = None
        opens = tray is None
        if tray is None:
            if not self._free:
                return None
            tray = _Tray(self._free.pop(), target, tag, capacity)
            self._filling[tray.number] = self._open[target] = tray
        span = Span(tray.number, tray.rows, rows, opens)
        tray.rows += rows
        tray.unfilled += 1
        if tray.rows == capacity:
            self._close(tray)
        return span

    def abandon(self, span: Span) -> None:
        """Takes back the reservation that has opened a tray, before anybody else has one in it."""
        tray = self._filling.pop(span.tray)
        if not tray.closed:
            del self._open[tray.target]
        self._free.append(span.tray)

    def filled(self, span: Span) -> bool:
        """The span's rows are written, or never will be; whether a reader could take something now."""
        tray = self._filling[span.tray]
        tray.unfilled -= 1
        if tray.closed and not tray.unfilled:
            self._make_due(tray)
        return bool(self._due) or not (tray.closed or tray.unfilled)

    def take(self) -> int | None:
        """The next tray to run, as the caller's own until give_back(); None: to be asked again after a filled()."""
        if not self._due and self._open:
            self._close(next((s for s in self._open.values() if not s.unfilled), next(iter(self._open.values()))))
        return self._due.popleft() if self._due else None

    def give_back(self, number: int) -> None:
        """The tray may be filled anew."""
        self._free.append(number)

    def _close(self, tray: _Tray) -> None:
        tray.closed = True
        del self._open[tray.target]
        if not tray.unfilled:
            self._make_due(tray)

    def _make_due(self, tray: _Tray) -> None:
        del self._filling[tray.number]
        self._due.append(tray.number)
