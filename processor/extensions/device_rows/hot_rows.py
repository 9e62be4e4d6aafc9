"""Choose which rows of a table's file lie on the device, where not all have room.

A row that batches sent from the host twice within a window takes the place of one that no batch has read since the hand
of a clock passed it (CLOCK).

Invariants
- A place is written again only when no line that names its earlier row can still be run. A line is filled in a phase,
  noted for its buffer before maps are read and cleared once the buffer has been run; a row that gives up its place
  leaves the map first, then the phase ends, and the place is free when all noted phases are later.
- A row enters the map after its place has been written. Rows of a file never change, so a line may name either.

Kernels write notes and marks of use without locks: a note that is lost costs a move later. Costs: 5 bytes for each row
of the file and 9 for each place in memory; a turn takes time in proportion to the notes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.device_rows.slot_kernels import NOTED

OFTEN = 2
"""Notes in a window that make a row worth a place."""
FREE = -1


class Phases:
    """The phase in which each buffer was filled that has not been run since."""

    def __init__(self) -> None:
        self.now = 0
        self._filled: dict[int, int] = {}

    def fill(self, buffer: int) -> None:
        """Note that a buffer, by the identity of its memory, is being filled; before any map is read."""
        self._filled.setdefault(buffer, self.now)

    def ran(self, buffer: int) -> None:
        """Note that all lines of a buffer have been run."""
        self._filled.pop(buffer, None)

    def end(self) -> int:
        self.now += 1
        return self.now - 1

    @property
    def oldest(self) -> int:
        """Return the oldest phase of a buffer that has not been run."""
        return min(list(self._filled.values()), default=self.now)


class HotRows:
    """The rows of one table's file that have places.

    `places`, int32 [rows], has that of each row, 0 for none; `notes`, int64 [1 + NOTED], the number of rows that were
    missed, and the last of them; `used`, uint8 [count], 1 for a place that was read.
    """

    def __init__(self, rows: int, first: int, count: int) -> None:
        self.places = np.zeros(rows, np.int32)
        self.places[:count] = np.arange(first, first + count, dtype=np.int32)
        self.notes, self.used = np.zeros(1 + NOTED, np.int64), np.zeros(count, np.uint8)
        self._first = first
        self._owners: NDArray[np.int64] = np.arange(count)
        self._free: list[tuple[int, NDArray[np.int64]]] = []
        self._hand = 0

    def take(self, phases: Phases) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return rows that are to get places, and the places, free now; the rest of what is needed becomes free later.

        Call placed() once the rows have been written.
        """
        rows = self._missed()
        free = np.concatenate([places for phase, places in self._free if phase < phases.oldest] or [rows[:0]])
        self._free = [(phase, places) for phase, places in self._free if phase >= phases.oldest]
        taken, left = free[: len(rows)], free[len(rows) :]
        if len(left):
            self._free.append((-1, left))
        short = len(rows) - len(taken) - sum(len(places) for _, places in self._free)
        if short > 0 and len(victims := self._victims(short)):
            self.places[self._owners[victims]] = 0
            self._owners[victims] = FREE
            self._free.append((phases.end(), victims))
        rows = rows[: len(taken)]
        self._owners[taken] = rows
        return rows, (taken + self._first).astype(np.int32)

    def placed(self, rows: NDArray[np.int64], places: NDArray[np.int32]) -> None:
        """Let batches find rows that have been written to their places."""
        self.places[rows] = places
        self.used[places - self._first] = 1

    def _missed(self) -> NDArray[np.int64]:
        """Return the rows that were missed often, those missed most often first, and forget the notes."""
        count = min(int(self.notes[0]), NOTED)
        rows, times = np.unique(self.notes[1 : 1 + count], return_counts=True)
        self.notes[0] = 0
        missed = (times >= OFTEN) & (self.places[rows] == 0)
        often: NDArray[np.int64] = rows[missed][np.argsort(-times[missed], kind="stable")]
        return often

    def _victims(self, count: int) -> NDArray[np.int64]:
        """Return places, by number among the table's, that nobody has read since the hand passed them."""
        at = (self._hand + np.arange(len(self.used))) % len(self.used)
        idle = np.flatnonzero((self.used[at] == 0) & (self._owners[at] != FREE))[:count]
        passed = int(idle[-1]) + 1 if len(idle) == count else len(at)
        self.used[at[:passed]] = 0
        self._hand = (self._hand + passed) % len(self.used)
        return at[idle]
