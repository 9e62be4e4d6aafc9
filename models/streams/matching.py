"""Match recorded rows with outcomes as both arrive. Pure: input is row and outcome numbers, times and keys.

A row waits for wait_s after it was recorded. It is a positive if an outcome of its key falls within that window, and a
negative otherwise. Rows leave in the order of their numbers. An outcome whose row has left is late: its row is looked
up among the emitted ones. An outcome without a row is kept until its row must have been read, and then counts as
unmatched: its request was not recorded, or its row left more than late_s ago.

Clients choose request ids, so an id may occur more than once. A row that leaves is contested by rows of the same id
that arrived since, and by one that left recently. If they repeat its request, one row counts and the others are left
out as retried. If they do not, the outcome cannot be attributed: all waiting rows are left out as disowned, and
outcomes of the id count as ambiguous while it is remembered. So a client that reuses another's id can keep that
client's row out of training, but cannot obtain a label for it.

Invariants
- Rows leave as a prefix of their numbers, so one number records what has left.
- An outcome is open from when it is read until its effect is emitted or counted, exactly once. Open outcomes have to be
  read again after a crash: open_outcomes().
- If a row has several outcomes, the first one read counts.
- No outcome is emitted with a row before recordings have been read up to the outcome's time, because another request
  with the same id may appear until then.

Cost: about 280 bytes a waiting row; its features are read again when it leaves. Rejected: keeping waiting rows with
their features (ten times the memory), or in files of the join's own (the recordings are such files).
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

from freshet_serving.models.streams.emitted_rows import EmittedRows, RowLocation
from freshet_serving.processor.errors import Corrupt

SINCE_ALIKE = ("retried", "disowned", "ambiguous")
"""Counts that older releases lack."""


@dataclass(slots=True)
class JoinCounts:
    """Fates of rows and outcomes.

    Attributes:
        lost: Rows whose recording was gone when their window ended.
        repeated: Emitted rows that no outcome finds, because an earlier row of the request has their key.
        late: Late outcomes that were corrected.
        unmatched: Outcomes without a row.
        duplicates: Outcomes after a row's first one.
        too_late: Outcomes too late for a correction, or whose row's file is gone.
        retried: Rows left out because they repeat a request.
        disowned: Rows left out because several requests have their id; their outcomes are ambiguous.
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
    """An outcome with a value other than 0, by its number in its stream."""

    number: int
    time_s: float
    value: float


@dataclass(slots=True)
class PendingRow:
    """A recorded row whose window has not ended.

    Attributes:
        before: Location of an emitted row with the same key.
        later: Rows of the same key that arrived since; set on the first one only.
        left_out: A fate of JoinCounts; "" if the row is to be emitted.
    """

    number: int
    time_s: float
    key: bytes
    outcome: PositiveOutcome | None = None
    before: RowLocation | None = None
    later: list[PendingRow] | None = None
    left_out: str = ""

    @property
    def of_one_request(self) -> Iterator[PendingRow]:
        """The row and later rows of its request; all rows of a request have the same time."""
        yield self
        yield from (row for row in self.later or () if row.time_s == self.time_s)

    @property
    def of_others(self) -> Iterator[PendingRow]:
        return (row for row in self.later or () if row.time_s != self.time_s)


@dataclass(frozen=True, slots=True)
class LateOutcome:
    """An outcome whose row was emitted as a negative; its key is compared, since the row is looked up by a hash."""

    outcome: PositiveOutcome
    place: RowLocation
    key: bytes


@dataclass(frozen=True, slots=True)
class OpenOutcomes:
    """The outcomes of the range [first, end) of numbers: those in `numbers` are open, the others settled."""

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
        """Parse the output of to_json(). Raises Corrupt."""
        try:
            first, end = int(said["first"]), int(said["end"])
            nbytes = -(-(end - first) // 8)
            unpacking = zlib.decompressobj()
            bits = np.frombuffer(unpacking.decompress(base64.b64decode(said["open"]), nbytes + 1), np.uint8)
            if first < 0 or end < first or len(bits) != nbytes:
                raise ValueError
            numbers = np.flatnonzero(np.unpackbits(bits, count=end - first)) + first
        except (KeyError, TypeError, ValueError, OverflowError, zlib.error) as error:
            raise Corrupt(f"open outcomes: expected a range and its bits, got {type(error).__name__}") from None
        return OpenOutcomes(first, end, frozenset(numbers.tolist()))


class Matcher:
    def __init__(
        self,
        wait_s: float,
        late_s: float,
        emitted: EmittedRows,
        known: OpenOutcomes,
        counts: JoinCounts,
    ) -> None:
        """Start from the state in which the join was left; late outcomes correct rows up to an age of late_s."""
        self._wait_s, self._last_s, self._emitted = wait_s, max(wait_s, late_s), emitted
        self._rows: deque[PendingRow] = deque()
        self._by_key: dict[bytes, PendingRow] = {}
        self._held: dict[bytes, PositiveOutcome] = {}
        self._open, self._end = set(known.numbers), known.end
        self.counts = counts
        self.late: list[LateOutcome] = []
        # Times of outcomes that became unmatched since the last give_up().
        self._unmatched_s: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def settled_s(self) -> float:
        """Unix time before which everything read so far has its fate."""
        first = self._rows[0].time_s + self._wait_s if self._rows else float("inf")
        return min([first, *(late.outcome.time_s for late in self.late)])

    def take_rows(self, first: int, times_s: Sequence[float], keys: Sequence[bytes]) -> None:
        """Add recorded rows, the first with number `first`."""
        places = self._emitted.find(keys)
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
        """Add outcomes, the first with number `first`; those settled before the join was left are skipped."""
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
        for (key, outcome), place in zip(strangers, self._emitted.find([key for key, _ in strangers], taken=True)):
            if place is not None:
                self._correct(LateOutcome(outcome, place, key))
            elif key in self._held:
                self.close([outcome], "duplicates")
            else:
                self._held[key] = outcome

    def due(self, until_s: float, most: int) -> list[PendingRow]:
        """Return the first rows, at most `most`, whose window had ended when outcomes were read up to until_s."""
        rows: list[PendingRow] = []
        for row in self._rows:
            if len(rows) == most or row.time_s + self._wait_s >= until_s:
                break
            rows.append(row)
        return rows

    def contested(self, rows: Sequence[PendingRow]) -> list[PendingRow]:
        """Return those of the first rows, about to leave, whose id may belong to several requests."""
        return [
            row
            for row in rows
            if self._by_key.get(row.key) is row and (row.before is not None or next(row.of_others, None) is not None)
        ]

    def decide(self, row: PendingRow, alike: bool) -> None:
        """Decide about a contested row and all later rows of its key.

        If they are alike, all repeat one request, and only this row or the one emitted before it counts.
        """
        if not alike:
            for disowned in (row, *(row.later or ())):
                disowned.left_out = "disowned"
            if row.outcome is not None:
                self.close([row.outcome], "ambiguous")
                row.outcome = None
            return
        for other in row.of_others:
            other.left_out = "retried"
        if row.before is None:
            return
        for repeat in row.of_one_request:
            repeat.left_out = "retried"
        if row.outcome is not None:
            (place,) = self._emitted.find([row.key], taken=True)
            self._correct(LateOutcome(row.outcome, place or row.before, row.key))
            row.outcome = None

    def corrections(self, until_s: float, most: int) -> list[LateOutcome]:
        """Return the first late outcomes, at most `most`, of times before until_s, to which recordings have been read.

        If another request has used the id since, the outcome is attached to its row or counted as ambiguous.
        """
        late, self.late = self.late, []
        for correction, place in zip(late, self._emitted.find([c.key for c in late])):
            row = self._by_key.get(correction.key)
            if row is not None and not row.left_out:
                self._attach(row, correction.outcome)
            elif place is not None and place.disowned:
                self.close([correction.outcome], "ambiguous")
            else:
                self.late.append(correction)
        return [correction for correction in self.late if correction.outcome.time_s < until_s][:most]

    def in_time(self, row: PendingRow) -> float:
        """Return the label of a leaving row: the value of an outcome within its window, or 0."""
        return row.outcome.value if row.outcome is not None and row.outcome.time_s <= row.time_s + self._wait_s else 0.0

    def pop_rows(self, rows: int, places: Sequence[RowLocation] | None) -> None:
        """Remove the first rows, which are now at `places` (unused for rows left out), or lost if that is None."""
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
        """Settle outcomes; their fate is a field of JoinCounts."""
        setattr(self.counts, fate, getattr(self.counts, fate) + len(outcomes))
        self._open.difference_update(outcome.number for outcome in outcomes)

    def give_up(self, before_s: float) -> list[float]:
        """Count held outcomes of times before before_s as unmatched; return the times of all that newly are."""
        gone = [key for key, outcome in self._held.items() if outcome.time_s < before_s]
        for key in gone:
            self._forgo(self._held.pop(key))
        times_s, self._unmatched_s = self._unmatched_s, []
        return times_s

    def open_outcomes(self) -> OpenOutcomes:
        """Return the outcomes that have to be read again after a crash."""
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
    """Parse the asdict() form of counts, also one of an older release with fewer counts. Raises Corrupt."""
    counts = dict.fromkeys(SINCE_ALIKE, 0) | said
    names = asdict(JoinCounts())
    if not all(type(counts.get(name)) is int for name in names):
        raise Corrupt("counts: expected integers")
    return JoinCounts(**{name: counts[name] for name in names})
