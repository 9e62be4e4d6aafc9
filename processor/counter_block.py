"""Counters in one block of slots: the owner lays them out with their metrics; all others read them by name.

A slot is one number and describes its metric family itself, so that a counter is added in one place. A block holds the
numbers of one owner (an observer, the remote tables of a version); snapshots of several owners and processes add up by
slot (`merged`).

Invariants
- A block's slots never change.
- A cell is written by its owner only: by one thread, or under the owner's lock. A snapshot is of one moment if it is
  taken under that lock.
- Slots are equal across processes; a slot that only one process has is kept.

Costs: to count is an addition to a cell of a list; a snapshot builds a dict of all slots.

Rejected: one array for a process (extensions come and go with versions); an array of NumPy (an addition to a cell takes
four times as long); help texts beside the extension's other offers (a second place for each counter).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Number = int | float


class Slot(NamedTuple):
    """One number, and the sample of /metrics that shows it.

    Attributes:
        name: Name within the block, as reports for people have it.
        metric: Metric family without the prefix of all; "" for a number that /metrics does not have.
        text: Help text of the family.
        label: Label that distinguishes the family's slots; "" for a family of one.
        value: The label's value.
        gauge: True if the number can fall.
        zero: The first value: 0 for int64, 0.0 for float64.
    """

    block: str
    name: str
    metric: str = ""
    text: str = ""
    label: str = ""
    value: str = ""
    gauge: bool = False
    zero: Number = 0

    def each(self, values: Iterable[str]) -> list[Slot]:
        """Return a slot "name.value" of the family for each value of its label."""
        return [self._replace(name=f"{self.name}.{value}", value=value) for value in values]


Snapshot = Mapping[Slot, Number]
"""Numbers by slot."""


class CounterBlock:
    """The counters of one owner, who alone writes `cells`."""

    __slots__ = ("cells", "slots")

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = tuple(slots)
        self.cells: list[Number] = [slot.zero for slot in self.slots]

    def snapshot(self) -> Snapshot:
        return dict(zip(self.slots, self.cells))


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the sum of snapshots, slot by slot."""
    total: dict[Slot, Number] = {}
    for snapshot in snapshots:
        for slot, number in snapshot.items():
            total[slot] = total.get(slot, 0) + number
    return total


def by_name(snapshot: Snapshot, block: str) -> dict[str, Number]:
    """Return the numbers of one block by their names."""
    return {slot.name: number for slot, number in snapshot.items() if slot.block == block}
