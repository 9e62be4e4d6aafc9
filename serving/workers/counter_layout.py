"""Send a worker's counters (processor.counter_block) to its supervisor: the layout once, then the numbers.

A report lists the numbers of all blocks in one order. The slots of that order are sent with the first report, and again
when they have changed: a version was opened or closed. So names and help texts do not travel once a second.

Invariants
- The supervisor has the layout of the numbers that it reads: a report that could not be sent is followed by one with
  the layout (`lost`), and a process begins with it.
- Reports of one process are written, sent and read in one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freshet_serving.processor.counter_block import Slot, Snapshot

COUNTED = "counted"
"""Key of the blocks in a report."""
PROCESS = ""
"""Key of the counters of a process; those of versions have their keys."""


def without_gauges(counted: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    """Return snapshots by key without the numbers that hold only while their process lives."""
    return {key: {slot: n for slot, n in snapshot.items() if not slot.gauge} for key, snapshot in counted.items()}


class CounterWriter:
    def __init__(self) -> None:
        self._sent: list[tuple[str, Slot]] | None = None

    def write(self, counted: Mapping[str, Snapshot]) -> dict[str, Any]:
        """Return the part of a report for the counters, JSON-able, from snapshots by key."""
        layout = [(key, slot) for key, snapshot in counted.items() for slot in snapshot]
        written: dict[str, Any] = {"numbers": [n for snapshot in counted.values() for n in snapshot.values()]}
        if layout != self._sent:
            self._sent = layout
            written["layout"] = [[key, list(slot)] for key, slot in layout]
        return written

    def lost(self) -> None:
        """Write the layout again with the next report: the last one was not sent."""
        self._sent = None


class CounterReader:
    def __init__(self) -> None:
        self._layout: list[tuple[str, Slot]] = []

    def read(self, written: Mapping[str, Any]) -> dict[str, dict[Slot, int | float]]:
        """Return the snapshots by key from what CounterWriter.write() has returned, perhaps through JSON."""
        if "layout" in written:
            self._layout = [(key, Slot(*slot)) for key, slot in written["layout"]]
        counted: dict[str, dict[Slot, int | float]] = {}
        for (key, slot), number in zip(self._layout, written["numbers"], strict=True):
            counted.setdefault(key, {})[slot] = number
        return counted
