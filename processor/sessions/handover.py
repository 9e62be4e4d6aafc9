"""Slots between those that fill batches and those that run them: which is free, filled, due. Pure bookkeeping.

A slot is rows that several writers fill side by side and one reader then takes whole. It is

    free ─reserve─▶ open ─full, other tag, or a reader waits─▶ closed ─last filled()─▶ due ─take─▶ taken ─▶ free

Prior art: the batch that is put together in place, by claims on the ring of the LMAX Disruptor; here a claim is a span
of rows, and the ring holds numbers of slots only, so nothing of a batch is copied or allocated on the way.

Invariants
- A slot is in exactly one state. It leaves `taken` only by give_back().
- Spans of one slot do not overlap and lie within its capacity. All have one target and one tag, as reserved: a slot
  never holds rows of two models or two generations.
- A slot is taken only when every span of it has been filled, and then once: what is reserved is taken exactly once.
- An open slot is given to a reader that has nothing else to do, so no row waits for others to come. It is closed
  even while spans are being filled: who comes after that goes to another slot, and the reader waits for those that
  were there, never for more.
- Due slots are taken in the order in which they became so.

Costs O(1) a call, but for take(), which may look at as many open slots as there are targets. Refused: slots of one
batch each, gathered by the reader (every row is copied once more, by the thread that has the least time); waiting a
while for a slot to fill (it fills by itself while the readers are busy).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A reservation. opens: whether it is its slot's first."""

    slot: int
    first: int
    rows: int
    opens: bool


@dataclass(slots=True)
class _Slot:
    """A slot that is open, closed or due. unfilled: spans of it that are being written."""

    number: int
    target: Hashable
    tag: Hashable
    capacity: int
    rows: int = 0
    unfilled: int = 0
    closed: bool = False


class Handover:
    """The slots of device stages. Not thread-safe: its owner locks."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))
        self._filling: dict[int, _Slot] = {}
        self._open: dict[Hashable, _Slot] = {}
        self._due: deque[int] = deque()

    @property
    def busy(self) -> bool:
        """Whether anything is reserved that nobody has taken."""
        return bool(self._filling or self._due)

    def reserve(self, target: Hashable, tag: Hashable, rows: int, capacity: int) -> Span | None:
        """Rows of the target's open slot, or of a free one; None where there is none: to be asked again after a
        give_back().

        tag: what may share a slot with others of the target. rows: at most capacity, which is the target's own.
        """
        slot = self._open.get(target)
        if slot is not None and (slot.tag != tag or slot.rows + rows > capacity):
            self._close(slot)
            slot = None
        opens = slot is None
        if slot is None:
            if not self._free:
                return None
            slot = _Slot(self._free.pop(), target, tag, capacity)
            self._filling[slot.number] = self._open[target] = slot
        span = Span(slot.number, slot.rows, rows, opens)
        slot.rows += rows
        slot.unfilled += 1
        if slot.rows == capacity:
            self._close(slot)
        return span

    def abandon(self, span: Span) -> None:
        """Takes back the reservation that has opened a slot, before anybody else has one in it."""
        slot = self._filling.pop(span.slot)
        if not slot.closed:
            del self._open[slot.target]
        self._free.append(span.slot)

    def filled(self, span: Span) -> bool:
        """The span's rows are written, or never will be; whether a reader could take something now."""
        slot = self._filling[span.slot]
        slot.unfilled -= 1
        if slot.closed and not slot.unfilled:
            self._make_due(slot)
        return bool(self._due) or not (slot.closed or slot.unfilled)

    def take(self) -> int | None:
        """The next slot to run, as the caller's own until give_back(); None: to be asked again after a filled()."""
        if not self._due and self._open:
            self._close(next((s for s in self._open.values() if not s.unfilled), next(iter(self._open.values()))))
        return self._due.popleft() if self._due else None

    def give_back(self, number: int) -> None:
        """The slot may be filled anew."""
        self._free.append(number)

    def _close(self, slot: _Slot) -> None:
        slot.closed = True
        del self._open[slot.target]
        if not slot.unfilled:
            self._make_due(slot)

    def _make_due(self, slot: _Slot) -> None:
        del self._filling[slot.number]
        self._due.append(slot.number)
