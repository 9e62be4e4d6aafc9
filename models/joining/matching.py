"""Recorded rows and outcomes, matched as both come. Pure: rows and outcomes go in with their numbers and times.

A row waits for wait_s after it was recorded. It is a positive where an outcome of its key has a time within that
window, and a negative otherwise; rows leave in the order of their numbers. An outcome whose row has left is late: its
row is looked for among those that were emitted. An outcome without a row is kept until its row must have been read,
and is then unmatched: its request was not recorded, or had left more than late_s ago.

Ids of requests are the clients', so one may be there more than once. When a row leaves, those of its id that have come
in the meantime, and one that has left in the last while, contest it. Where they repeat its request one counts, and the
others are left out as retried. Where they do not, nobody can tell whose an outcome is: all that wait are left out as
disowned, and outcomes of the id are ambiguous, for the last while to come. So whoever uses another's id can keep the
other's row from being learned, and has no label of it.

Invariants
- Rows leave as a prefix of their numbers: a number says what has left.
- An outcome is open from when it is read until what it says has been emitted or counted; it has one of these fates, and
  is counted once. Open ones are what has to be read again after a crash: open_outcomes().
- Of several outcomes of one row the first that is read counts.
- No outcome is emitted with a row before recordings have been read up to the outcome's time: until then another request
  of the id may come to light.

Cost: about 280 bytes a waiting row, whatever its features are: those are read again when it leaves. Refused: waiting
rows with their features (ten times the memory), or in files of our own (the recordings are such files).
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from freshet_serving.models.joining.emitted_rows import EmittedRows, RowLocation
from freshet_serving.processor.errors import Corrupt

SINCE_ALIKE = ("retried", "disowned", "ambiguous")
"""Counts of releases that compare the rows of an id."""


@dataclass(slots=True)
class JoinCounts:
    """What has become of rows and outcomes.

    rows: emitted. lost: rows whose recording was gone when their window ended. repeated: emitted rows that no outcome
    finds, as an earlier row of the request has their key. retried, disowned: rows that were left out, as they repeat a
    request, and as several requests have their id. Outcomes: positives in time; late, which were corrected; unmatched;
    duplicates of a row's first; too_late for a correction, or whose row's file is gone; ambiguous, of rows that were
    disowned.
    """

    rows: int = 0
    lost: int = 0
    repeated: int = 0
    positives: int = 0
    late: int = 0
    unmatched: int = 0
    duplicates: int = 0
    too_late: int = 0
    retried: int = 0
    disowned: int = 0
    ambiguous: int = 0


@dataclass(frozen=True, slots=True)
class PositiveOutcome:
    """An outcome that says more than 0: its number in its stream, when it came about, what the row's label is to be."""

    number: int
    time_s: float
    value: float


@dataclass(slots=True)
class PendingRow:
    """A recorded row whose window has not ended. before: where a row of its key has left; later: rows of its key that
    have come since, of the first one alone. left_out: a fate of JoinCounts; "": it is emitted."""

    number: int
    time_s: float
    key: bytes
    outcome: PositiveOutcome | None = None
    before: RowLocation | None = None
    later: list[PendingRow] | None = None
    left_out: str = ""

    @property
    def of_one_request(self) -> Iterator[PendingRow]:
        """The row, and later ones of its request, which has one time for all."""
        yield self
        yield from (row for row in self.later or () if row.time_s == self.time_s)

    @property
    def of_others(self) -> Iterator[PendingRow]:
        """The later rows of other requests."""
        return (row for row in self.later or () if row.time_s != self.time_s)


@dataclass(frozen=True, slots=True)
class LateOutcome:
    """An outcome whose row was emitted as a negative. key: for the row is looked up by a hash."""

    outcome: PositiveOutcome
    place: RowLocation
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
        emitted: EmittedRows,
        known: OpenOutcomes,
        counts: JoinCounts,
    ) -> None:
        """emitted: rows that have left; known, counts: as of when the join was left."""
        self._wait_s, self._last_s, self._emitted = wait_s, max(wait_s, late_s), emitted
        self._rows: deque[PendingRow] = deque()
        self._by_key: dict[bytes, PendingRow] = {}
        self._held: dict[bytes, PositiveOutcome] = {}
        self._open, self._end = set(known.numbers), known.end
        self.counts = counts
        self.late: list[LateOutcome] = []
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
        return min([first, *(one.outcome.time_s for one in self.late)])

    def take_rows(self, first: int, times_s: Sequence[float], keys: Sequence[bytes]) -> None:
        """Recorded rows from number `first` on, in order."""
        places = self._emitted.places(keys)
        for number, time_s, key, before in zip(itertools.count(first), times_s, keys, places):
            row = PendingRow(number, time_s, key, before=before)
            self._rows.append(row)
            if (earlier := self._by_key.get(key)) is not None:
                earlier.later = earlier.later or []
                earlier.later.append(row)
                continue
            self._by_key[key] = row
            if (outcome := self._held.pop(key, None)) is not None:
                self._attach(row, outcome)

    def take_outcomes(
        self, first: int, times_s: Sequence[float], values: Sequence[float], keys: Sequence[bytes]
    ) -> None:
        """Outcomes from number `first` on; those that were done when the join was left are passed over."""
        strangers: list[tuple[bytes, PositiveOutcome]] = []
        for number, time_s, value, key in zip(itertools.count(first), times_s, values, keys):
            if number < self._end and number not in self._open:
                continue
            self._open.add(number)
            outcome = PositiveOutcome(number, time_s, value)
            if value == 0:
                self._open.discard(number)
            elif (row := self._by_key.get(key)) is not None:
                self._attach(row, outcome)
            else:
                strangers.append((key, outcome))
        self._end = max(self._end, first + len(keys))
        for (key, outcome), place in zip(strangers, self._emitted.find([key for key, _ in strangers])):
            if place is not None:
                self._correct(LateOutcome(outcome, place, key))
            elif key in self._held:
                self.close([outcome], "duplicates")
            else:
                self._held[key] = outcome

    def due(self, until_s: float, most: int) -> list[PendingRow]:
        """The first rows, at most so many, whose window has ended for outcomes of times before until_s."""
        found: list[PendingRow] = []
        for row in self._rows:
            if len(found) == most or row.time_s + self._wait_s >= until_s:
                break
            found.append(row)
        return found

    def contested(self, rows: Sequence[PendingRow]) -> list[PendingRow]:
        """Those of the first rows, which are about to leave, whose request may not be the only one of its id."""
        return [
            row
            for row in rows
            if self._by_key.get(row.key) is row and (row.before is not None or next(row.of_others, None) is not None)
        ]

    def decide(self, row: PendingRow, alike: bool) -> None:
        """Decides about a contested row and all later ones of its key. alike: they all repeat one request, of which the
        row counts, or the one before it."""
        if not alike:
            for one in (row, *(row.later or ())):
                one.left_out = "disowned"
            if row.outcome is not None:
                self.close([row.outcome], "ambiguous")
                row.outcome = None
            return
        for one in row.of_others:
            one.left_out = "retried"
        if row.before is None:
            return
        for one in row.of_one_request:
            one.left_out = "retried"
        if row.outcome is not None:
            (place,) = self._emitted.find([row.key])
            self._correct(LateOutcome(row.outcome, place or row.before, row.key))
            row.outcome = None

    def corrections(self, until_s: float, most: int) -> list[LateOutcome]:
        """The first late outcomes, at most so many, of times before until_s, up to which recordings have been read.
        Those whose id another request has used since go to that one, or are ambiguous."""
        late, self.late = self.late, []
        for one, place in zip(late, self._emitted.places([one.key for one in late])):
            row = self._by_key.get(one.key)
            if row is not None and not row.left_out:
                self._attach(row, one.outcome)
            elif place is not None and place.disowned:
                self.close([one.outcome], "ambiguous")
            else:
                self.late.append(one)
        return [one for one in self.late if one.outcome.time_s < until_s][:most]

    def in_time(self, row: PendingRow) -> float:
        """The label of a row that leaves: what came within its window, 0 for nothing."""
        return row.outcome.value if row.outcome is not None and row.outcome.time_s <= row.time_s + self._wait_s else 0.0

    def pop_rows(self, rows: int, places: Sequence[RowLocation] | None) -> None:
        """The first rows leave. places: where each is emitted that is not left out; None: they are lost."""
        for n in range(rows):
            row = self._rows.popleft()
            if first := self._by_key.get(row.key) is row:
                del self._by_key[row.key]
            outcome = row.outcome
            if places is None:
                self.counts.lost += 1
                if outcome is not None:
                    self._forgo(outcome)
                continue
            if row.left_out:
                setattr(self.counts, row.left_out, getattr(self.counts, row.left_out) + 1)
                continue
            self.counts.rows += 1
            self.counts.repeated += not first
            if outcome is None:
                continue
            if self.in_time(row):
                self.close([outcome], "positives")
            else:
                self._correct(LateOutcome(outcome, places[n], row.key))

    def close(self, outcomes: Sequence[PositiveOutcome], fate: str) -> None:
        """These outcomes have this fate, a field of JoinCounts."""
        setattr(self.counts, fate, getattr(self.counts, fate) + len(outcomes))
        self._open.difference_update(outcome.number for outcome in outcomes)

    def give_up(self, before_s: float) -> list[float]:
        """Outcomes of times before before_s will not find a row any more; the times of all that were unmatched since
        this was last asked."""
        gone = [key for key, outcome in self._held.items() if outcome.time_s < before_s]
        for key in gone:
            self._forgo(self._held.pop(key))
        times_s, self._unmatched_s = self._unmatched_s, []
        return times_s

    def open_outcomes(self) -> OpenOutcomes:
        """What has to be read again after a crash."""
        first = min(self._open, default=self._end)
        return OpenOutcomes(first, max(self._end, first), frozenset(self._open))

    def _attach(self, row: PendingRow, outcome: PositiveOutcome) -> None:
        if row.outcome is not None:
            self.close([outcome], "duplicates")
        elif outcome.time_s - row.time_s > self._last_s:
            self.close([outcome], "too_late")
        else:
            row.outcome = outcome

    def _correct(self, late: LateOutcome) -> None:
        if late.place.disowned:
            self.close([late.outcome], "ambiguous")
        elif late.place.positive:
            self.close([late.outcome], "duplicates")
        elif self._last_s == self._wait_s:
            self.close([late.outcome], "too_late")
        else:
            self.late.append(late)

    def _forgo(self, outcome: PositiveOutcome) -> None:
        self._unmatched_s.append(outcome.time_s)
        self.close([outcome], "unmatched")


def counts_from(said: dict[str, int]) -> JoinCounts:
    """What asdict() gave of counts, and an older release of the counts that it had; raises Corrupt."""
    counts = dict.fromkeys(SINCE_ALIKE, 0) | said
    names = asdict(JoinCounts())
    if not all(type(counts.get(name)) is int for name in names):
        raise Corrupt("counts: an integer for each wanted")
    return JoinCounts(**{name: counts[name] for name in names})
