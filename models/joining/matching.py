"""Recorded rows and outcomes, matched as both come. Pure: rows and outcomes go in with their numbers and times.

A row waits for wait_s after it was recorded. It is a positive where an outcome of its key has a time within that
window, and a negative otherwise; rows leave in the order of their numbers. An outcome whose row has left is late: its
row is looked for among those that were emitted. An outcome without a row is kept until its row must have been read,
and is then unmatched: its request was not recorded, or had left more than late_s ago.

Invariants
- Rows leave as a prefix of their numbers: a number says what has left.
- An outcome is open from when it is read until what it says has been emitted or counted; it has one of these fates, and
  is counted once. Open ones are what has to be read again after a crash: open_outcomes().
- Of several outcomes of one row the first that is read counts.

Cost: about 250 bytes a waiting row, whatever its features are: those are read again when it leaves. Refused: waiting
rows with their features (ten times the memory), or in files of our own (the recordings are such files).
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from models.joining.emitted_rows import RowPlace
from processor.errors import Corrupt


@dataclass(slots=True)
class JoinCounts:
    """What has become of rows and outcomes. lost: rows whose recording was gone when their window ended. Outcomes:
    positives in time; late, which were corrected; unmatched; duplicates of a row's first; too_late for a correction, or
    whose row's file is gone. repeated: rows of a request id that still waited under that id."""

    rows: int = 0
    lost: int = 0
    repeated: int = 0
    positives: int = 0
    late: int = 0
    unmatched: int = 0
    duplicates: int = 0
    too_late: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """An outcome that says more than 0: its number in its stream, when it came about, what the row's label is to be."""

    number: int
    time_s: float
    value: float


@dataclass(slots=True)
class WaitingRow:
    """A recorded row whose window has not ended."""

    number: int
    time_s: float
    key: bytes
    hit: Hit | None = None


@dataclass(frozen=True, slots=True)
class LateHit:
    """An outcome whose row was emitted as a negative. key: for the row is looked up by a hash."""

    hit: Hit
    place: RowPlace
    key: bytes


@dataclass(frozen=True, slots=True)
class OpenOutcomes:
    """Outcomes from number `first` to before `end` of which those in `numbers` are open, the others done."""

    first: int = 0
    end: int = 0
    numbers: frozenset[int] = field(default_factory=frozenset)

    def to_json(self) -> dict[str, Any]:
        bits = np.zeros(self.end - self.first, bool)
        bits[[number - self.first for number in self.numbers]] = True
        packed = zlib.compress(np.packbits(bits).tobytes())
        return {"first": self.first, "end": self.end, "open": base64.b64encode(packed).decode()}

    @staticmethod
    def from_json(said: dict[str, Any]) -> OpenOutcomes:
        """Raises Corrupt."""
        try:
            first, end = int(said["first"]), int(said["end"])
            nbytes = -(-(end - first) // 8)
            unpacking = zlib.decompressobj()
            bits = np.frombuffer(unpacking.decompress(base64.b64decode(said["open"]), nbytes + 1), np.uint8)
            if first < 0 or end < first or len(bits) != nbytes:
                raise ValueError
            found = np.flatnonzero(np.unpackbits(bits, count=end - first)) + first
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise Corrupt(f"open outcomes: a range and its bits wanted, got {type(error).__name__}") from None
        return OpenOutcomes(first, end, frozenset(found.tolist()))


class Matcher:
    """The rows and outcomes of one join that wait for each other."""

    def __init__(
        self,
        wait_s: float,
        late_s: float,
        emitted: Callable[[Sequence[bytes]], list[RowPlace | None]],
        known: OpenOutcomes,
        counts: JoinCounts,
    ) -> None:
        """emitted: finds rows that have left by their keys, and takes each for a positive from then on; known, counts:
        as of when the join was left."""
        self._wait_s, self._last_s, self._emitted = wait_s, max(wait_s, late_s), emitted
        self._rows: deque[WaitingRow] = deque()
        self._by_key: dict[bytes, WaitingRow] = {}
        self._held: dict[bytes, Hit] = {}
        self._open, self._end = set(known.numbers), known.end
        self.counts = counts
        self.late: list[LateHit] = []
        # Times of unmatched outcomes since they were last asked for.
        self._unmatched_s: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held(self) -> int:
        """Outcomes whose row has not been seen."""
        return len(self._held)

    @property
    def settled_s(self) -> float:
        """Everything that came about before this has a fate, as far as it has been read."""
        first = self._rows[0].time_s + self._wait_s if self._rows else float("inf")
        return min([first, *(one.hit.time_s for one in self.late)])

    def take_rows(self, first: int, times_s: Sequence[float], keys: Sequence[bytes]) -> None:
        """Recorded rows from number `first` on, in order."""
        for number, time_s, key in zip(itertools.count(first), times_s, keys):
            row = WaitingRow(number, time_s, key)
            self._rows.append(row)
            if key in self._by_key:
                self.counts.repeated += 1
                continue
            self._by_key[key] = row
            if (hit := self._held.pop(key, None)) is not None:
                self._attach(row, hit)

    def take_outcomes(
        self, first: int, times_s: Sequence[float], values: Sequence[float], keys: Sequence[bytes]
    ) -> None:
        """Outcomes from number `first` on; those that were done when the join was left are passed over."""
        strangers: list[tuple[bytes, Hit]] = []
        for number, time_s, value, key in zip(itertools.count(first), times_s, values, keys):
            if number < self._end and number not in self._open:
                continue
            self._open.add(number)
            hit = Hit(number, time_s, value)
            if value == 0:
                self._open.discard(number)
            elif (row := self._by_key.get(key)) is not None:
                self._attach(row, hit)
            else:
                strangers.append((key, hit))
        self._end = max(self._end, first + len(keys))
        for (key, hit), place in zip(strangers, self._emitted([key for key, _ in strangers])):
            if place is not None:
                self._correct(LateHit(hit, place, key), place.positive)
            elif key in self._held:
                self.close([hit], "duplicates")
            else:
                self._held[key] = hit

    def due(self, until_s: float, most: int) -> list[WaitingRow]:
        """The first rows, at most so many, whose window has ended for outcomes of times before until_s."""
        found: list[WaitingRow] = []
        for row in self._rows:
            if len(found) == most or row.time_s + self._wait_s >= until_s:
                break
            found.append(row)
        return found

    def in_time(self, row: WaitingRow) -> float:
        """The label of a row that leaves: what came within its window, 0 for nothing."""
        return row.hit.value if row.hit is not None and row.hit.time_s <= row.time_s + self._wait_s else 0.0

    def leave(self, rows: int, places: Sequence[RowPlace] | None) -> None:
        """The first rows leave. places: where each is emitted; None: they are lost."""
        for n in range(rows):
            row = self._rows.popleft()
            if self._by_key.get(row.key) is row:
                del self._by_key[row.key]
            hit = row.hit
            if places is None:
                self.counts.lost += 1
                if hit is not None:
                    self._forgo(hit)
                continue
            self.counts.rows += 1
            if hit is None:
                continue
            if self.in_time(row):
                self.close([hit], "positives")
            elif self._last_s > self._wait_s:
                self._correct(LateHit(hit, places[n], row.key), False)
            else:
                self.close([hit], "too_late")

    def close(self, hits: Sequence[Hit], fate: str) -> None:
        """These outcomes have this fate, a field of JoinCounts."""
        setattr(self.counts, fate, getattr(self.counts, fate) + len(hits))
        self._open.difference_update(hit.number for hit in hits)

    def give_up(self, before_s: float) -> list[float]:
        """Outcomes of times before before_s will not find a row any more; the times of all that were unmatched since
        this was last asked."""
        gone = [key for key, hit in self._held.items() if hit.time_s < before_s]
        for key in gone:
            self._forgo(self._held.pop(key))
        times_s, self._unmatched_s = self._unmatched_s, []
        return times_s

    def open_outcomes(self) -> OpenOutcomes:
        """What has to be read again after a crash."""
        first = min(self._open, default=self._end)
        return OpenOutcomes(first, max(self._end, first), frozenset(self._open))

    def _attach(self, row: WaitingRow, hit: Hit) -> None:
        if row.hit is not None:
            self.close([hit], "duplicates")
        elif hit.time_s - row.time_s > self._last_s:
            self.close([hit], "too_late")
        else:
            row.hit = hit

    def _correct(self, late: LateHit, positive: bool) -> None:
        if positive:
            self.close([late.hit], "duplicates")
        else:
            self.late.append(late)

    def _forgo(self, hit: Hit) -> None:
        self._unmatched_s.append(hit.time_s)
        self.close([hit], "unmatched")


def counts_from(said: dict[str, int]) -> JoinCounts:
    """What asdict() gave of counts; raises Corrupt."""
    names = asdict(JoinCounts())
    if not all(type(said.get(name)) is int for name in names):
        raise Corrupt("counts: an integer for each wanted")
    return JoinCounts(**{name: said[name] for name in names})
