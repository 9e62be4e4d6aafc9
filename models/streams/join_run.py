"""Run a join: read recordings and outcomes, write labelled rows, exactly once from the recording on.

Both streams are read side by side, the one that lags first, so only rows and outcomes of similar times are in memory,
however large the backlog. A row is emitted once outcomes have been read up to wait_s + lag_s after it.

Invariants
- The emitted rows are a prefix of the recordings' rows, and the file that emits them holds the state that says so
  (models.streams.joined_folder). A kill at any moment costs only the input read since, which is read again.
- A journal line is durable before rows of its segment are matched (models.streams.stream_journal), so row numbers in a
  state mean the same rows after a crash.
- All rows of a file have the same columns; freshet.late marks rows that are emitted a second time. Rows that are left
  out (models.streams.matching) are counted in the file of their neighbours.

One thread runs the join; any thread may read its status and stop it. Memory: at most MOST_WAITING rows (their cost is
in models.streams.matching), after which no recordings are read until some are emitted, and 17 bytes for each row of the
last max(late_s, wait_s) seconds, read from the joined folder at the start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_serving.models.data.broadcast_columns import filled, once_nbytes, take_once
from freshet_serving.models.data.source import Batch, Schema
from freshet_serving.models.streams.emitted_rows import NOWHERE, EmittedRows, RowLocation
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.join_settings import JoinSettings
from freshet_serving.models.streams.join_state import JoinState
from freshet_serving.models.streams.join_windows import JoinWindows, write_lines
from freshet_serving.models.streams.joined_folder import (
    BOOKS,
    GROUP_NBYTES,
    LABEL,
    LATE,
    ROWS_NBYTES,
    JoinedFolder,
    labelled,
    seconds,
)
from freshet_serving.models.streams.late_share import LateShare
from freshet_serving.models.streams.matching import JoinCounts, LateOutcome, Matcher, PendingRow
from freshet_serving.models.streams.open_rows import open_stream
from freshet_serving.models.streams.recording_folder import RECORDINGS, RecordingFolder, score_column
from freshet_serving.models.streams.repeated_ids import repeat_one_request
from freshet_serving.models.streams.stream import ErrorContext, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.timed_stream import TimedStream
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import GENERATION, REQUEST, TIME

MOST_WAITING = 10_000_000
MANY_HELD = 200_000
NOTED_S = 60.0
WINDOWS = f"{BOOKS}/windows"
OUTCOMES = ErrorContext("--outcomes", RECORDINGS.anew)


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """Sums over one generation's rows whose window has ended; `labels` are those that came in time."""

    scores: float
    labels: float
    rows: int


@dataclass(frozen=True, slots=True)
class JoinStatus:
    """Progress of a join; files and invalid rows are of both streams.

    Attributes:
        waiting: Rows whose window has not ended.
        held: Outcomes without a row.
        emitted: Emitted rows that a late outcome would find.
        lost_files: Recordings deleted before they were read, as lost_outcomes.
        late_share: Estimated share of positives that come late.
        calibration: Calibration of the newest window.
        rows_s: Unix time up to which recordings have been read; `outcomes_s` likewise.
        trouble: Why a stream cannot be read; "" if both can.
    """

    counts: JoinCounts = field(default_factory=JoinCounts)
    files: int = 0
    waiting: int = 0
    held: int = 0
    emitted: int = 0
    rejected: int = 0
    lost_files: int = 0
    files_aside: int = 0
    lost_outcomes: int = 0
    late_share: float = 0.0
    calibration: float = float("nan")
    rows_s: float = 0.0
    outcomes_s: float = 0.0
    trouble: str = ""


class JoinRun:
    """One join, which resumes from the state of its output folder."""

    def __init__(
        self,
        settings: JoinSettings,
        unix_s: Callable[[], float] = time.time,
        tell: Callable[[str, Mapping[str, ScoreSums]], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Open the output folder and both streams. Raises BadInput, Corrupt.

        Args:
            tell: Receives (model, sums by generation) for every file after it is written.
            note: Receives lines for people.
        """
        self.settings, self._unix_s, self._tell = settings, unix_s, tell or (lambda model, sums: None)
        self._note, self._noted_s, self._disowned = note or (lambda line: None), float("-inf"), 0
        self._stopped = threading.Event()
        row_schema, outcome_schema = settings.schemas()
        self._folder = JoinedFolder(Path(settings.out))
        with ExitStack() as failing:
            failing.callback(self._folder.close)
            self._open(row_schema, outcome_schema)
            failing.pop_all()

    def _open(self, row_schema: Schema, outcome_schema: Schema) -> None:
        settings, unix_s = self.settings, self._unix_s
        stored = self._folder.state()
        state = JoinState.from_json(stored) if stored is not None else JoinState()
        if stored is not None:
            self._check(state)
        self._recordings = RecordingFolder(settings.recordings, settings.model or state.model, row_schema)
        outcomes = open_stream(settings.format, settings.outcomes, outcome_schema, OUTCOMES)
        self._journal = self._journal_of(RECORDINGS, self._recordings)
        rows = FollowedSource(self._recordings, self._journal, row_schema, settings.follow, linger_s=0.0)
        outcome_journal = self._journal_of(OUTCOMES, outcomes)
        hits = FollowedSource(outcomes, outcome_journal, outcome_schema, settings.follow, linger_s=0.0)
        self._rows = TimedStream(rows, state.recordings, unix_s)
        self._outcomes = TimedStream(hits, state.outcomes.first, unix_s)
        self._share = LateShare(settings.wait_s, settings.late_s, state.share)
        self._windows = JoinWindows(settings.window_s, state.windows)
        self._emitted = EmittedRows()
        self._until_s = state.until_s
        self._read_before = state.outcomes.end
        self._recall(state.oldest_late)
        self._matcher = Matcher(settings.wait_s, settings.late_s, self._emitted, state.outcomes, state.counts)
        self._next_row = state.recordings
        # A restart reads rows and outcomes again from these numbers on.
        self._kept = self._next_row, state.outcomes.first
        self._committed_s = unix_s()
        self._late_share, self._calibration = self._share.share(self._until_s), float("nan")

    @property
    def model(self) -> str:
        return self._recordings.model

    def run(self) -> None:
        """Join until stop(), or to the end of the input if it is not followed."""
        try:
            while not self._stopped.is_set() and not (self._rows.ended and self._outcomes.ended):
                self.run_once()
            self.commit(ending=True)
        finally:
            self._folder.close()
            for arrivals in (self._rows, self._outcomes):
                arrivals.source.close()

    def stop(self) -> None:
        """Make run() end after its current step. Thread-safe."""
        self._stopped.set()

    def run_once(self) -> None:
        """Read a batch of the stream that lags, and emit due rows when it is time."""
        full = len(self._matcher) >= MOST_WAITING
        ahead = self._rows.read_s > self._outcomes.read_s or full or self._rows.ended
        if ahead and not self._outcomes.ended:
            # An unreadable stream lags all the time, so read the other one.
            if not self._take_outcomes() and not full and not self._rows.ended:
                self._take_rows()
        elif not self._rows.ended and not self._take_rows() and not self._outcomes.ended:
            self._take_outcomes()
        if self._matcher.held > MANY_HELD:
            self._give_up()
        self.commit()

    def commit(self, ending: bool = False) -> None:
        """Emit due rows if every_s seconds have passed, a whole file's rows are due, or `ending` is set."""
        due = self._unix_s() - self._committed_s >= self.settings.every_s
        while (
            due
            or ending
            or len(self._matcher.due(self._read_until_s, self.settings.file_rows)) == self.settings.file_rows
        ):
            due = False
            self._committed_s = self._unix_s()
            self._reach()
            self._give_up()
            emitted = self._emit()
            if emitted or ending:
                self._report()
                for stream in (self._rows, self._outcomes):
                    for line in stream.source.news():
                        self._note(line)
            self._forget()
            if not emitted or self._stopped.is_set():
                break

    def status(self) -> JoinStatus:
        """Return the join's progress. Thread-safe."""
        intakes = self._rows.source.ingest_status(), self._outcomes.source.ingest_status()
        return JoinStatus(
            counts=JoinCounts(**asdict(self._matcher.counts)),
            files=self._folder.next - 1,
            waiting=len(self._matcher),
            held=self._matcher.held,
            emitted=len(self._emitted),
            rejected=sum(ingest_status.rejected for ingest_status in intakes),
            lost_files=self._recordings.lost_files,
            files_aside=sum(ingest_status.backlog.aside for ingest_status in intakes),
            lost_outcomes=intakes[1].backlog.lost,
            late_share=self._late_share,
            calibration=self._calibration,
            rows_s=self._rows.read_s,
            outcomes_s=self._outcomes.read_s,
            trouble="; ".join(filter(None, (ingest_status.backlog.trouble for ingest_status in intakes))),
        )

    @property
    def _rows_until_s(self) -> float:
        return self._rows.read_s - self.settings.lag_s

    @property
    def _read_until_s(self) -> float:
        """Unix time before which outcomes have been read, and recordings too, unless too many rows wait."""
        outcomes_s = self._outcomes.read_s - self.settings.lag_s
        return outcomes_s if len(self._matcher) >= MOST_WAITING else min(outcomes_s, self._rows_until_s)

    def _take_rows(self) -> bool:
        batch = self._rows.next()
        if batch is not None:
            times_s = batch.time.tolist() if batch.time is not None else []
            self._matcher.take_rows(batch.start, times_s, _keys(batch, self._rows.source.schema))
        return batch is not None

    def _take_outcomes(self) -> bool:
        batch = self._outcomes.next()
        if batch is not None:
            times_s = batch.time.tolist() if batch.time is not None else []
            values = batch.label.tolist() if self.settings.value else [1.0] * len(batch)
            self._matcher.take_outcomes(batch.start, times_s, values, _keys(batch, self._outcomes.source.schema))
        return batch is not None

    def _emit(self) -> int:
        """Emit the first due rows with the same columns, and rows that became positives late.

        Return the number of rows emitted, and of outcomes settled.
        """
        due = self._matcher.due(self._read_until_s, self.settings.file_rows)
        count, rows = self._recordings.recorded(self._journal, [row.number for row in due]) if due else (0, None)
        due = due[:count]
        if due:
            self._next_row = due[-1].number + 1
            self._settle(due)
        if due and rows is None:
            self._matcher.pop_rows(count, None)
            return count
        counted = [row for row in due if not row.left_out]
        if rows is not None and len(counted) < count:
            rows = take_once(rows, np.flatnonzero([not row.left_out for row in due]))
        late, more, refused = self._corrections(rows)
        self._matcher.close([correction.outcome for correction in refused], "too_late")
        tables = [table for table in (rows, more) if table is not None]
        if not tables:
            return len(refused)
        values = np.array([self._matcher.in_time(row) for row in counted])
        weights = self._count_rows(rows, values) if rows is not None else np.zeros(0)
        corrected = np.array([correction.outcome.value for correction in late])
        if more is not None:
            self._count_late(more, late, corrected)
        both = pa.concat_tables(tables)
        # Spread corrections among the rows, which keep their order: a batch of positives alone would mislead
        # training. But each interrupts rows that share a list, which has to be written again after it.
        places = np.concatenate([(np.arange(n) + 0.5) / max(1, n) for n in (len(counted), len(late))])
        order = np.argsort(places, kind="stable")
        unmixed = np.arange(len(both))
        if once_nbytes(both, order) > max(GROUP_NBYTES, 2 * once_nbytes(both, unmixed)):
            order = unmixed
        at = np.argsort(order)[: len(counted)].tolist()
        table = labelled(
            take_once(both, order),
            np.concatenate([values, np.ones(len(late))])[order],
            np.concatenate([weights, corrected])[order],
            order >= len(counted),
        )
        self._commit_file(due, at, values, late, table)
        if rows is not None and counted:
            self._tell(self.model, _by_generation(rows, _scores(rows, self.settings.score), values))
        return count + len(late) + len(refused)

    def _settle(self, due: list[PendingRow]) -> None:
        """Decide which due rows are left out because their id occurs more than once."""
        contested = self._matcher.contested(due)
        if not contested:
            return
        alike = repeat_one_request(contested, partial(self._recordings.recorded, self._journal), self._folder.recorded)
        for row, one_request in zip(contested, alike):
            self._matcher.decide(row, one_request)
        self._disowned += alike.count(False)
        if self._disowned and self._unix_s() - self._noted_s >= NOTED_S:
            self._note(
                f"expected one request for each id, got several for the ids of {self._disowned:,} rows: these rows and"
                " their outcomes are skipped; give each request a unique id that cannot be guessed"
            )
            self._noted_s, self._disowned = self._unix_s(), 0

    def _count_rows(self, rows: pa.Table, values: np.ndarray) -> np.ndarray:
        """Count rows that are emitted and return the weight of each."""
        times_s, scores = seconds(rows[TIME]), _scores(rows, self.settings.score)
        weights = np.where(values > 0, 1.0, self._share.weights(scores, self._until_s))
        self._share.add_rows(times_s, scores, values)
        each = np.ones(len(values))
        self._windows.add(times_s, rows=each, positives=values, scores=scores, weights=weights)
        return weights

    def _count_late(self, rows: pa.Table, late: list[LateOutcome], values: np.ndarray) -> None:
        times_s = seconds(rows[TIME])
        delays_s = np.array([correction.outcome.time_s for correction in late]) - times_s
        self._share.add_late(times_s, delays_s, values)
        self._windows.add(times_s, late=values, weights=values)

    def _corrections(self, rows: pa.Table | None) -> tuple[list[LateOutcome], pa.Table | None, list[LateOutcome]]:
        """Take late outcomes that can be emitted with `rows`; they no longer wait.

        Return the outcomes, their rows (with the columns of `rows`, if given), and outcomes that cannot be corrected.
        """
        taken: list[LateOutcome] = []
        refused: list[LateOutcome] = []
        tables: list[pa.Table] = []
        by_file: dict[int, list[LateOutcome]] = {}
        for correction in self._matcher.corrections(self._rows_until_s, self.settings.file_rows):
            by_file.setdefault(correction.place.file, []).append(correction)
        for number, of_file in sorted(by_file.items()):
            if sum(table.nbytes for table in tables) >= ROWS_NBYTES:
                break
            table = self._folder.recorded(number, [correction.place.row for correction in of_file])
            if table is None:
                refused += of_file
                continue
            like = rows if rows is not None else (tables or [table])[0]
            if not table.schema.equals(like.schema, check_metadata=True):
                continue
            fits = self._fits(table, of_file)
            taken += [correction for correction, fit in zip(of_file, fits) if fit]
            refused += [correction for correction, fit in zip(of_file, fits) if not fit]
            tables.append(take_once(table, np.flatnonzero(fits)))
        done = {correction.outcome.number for correction in (*taken, *refused)}
        self._matcher.late = [late for late in self._matcher.late if late.outcome.number not in done]
        return taken, pa.concat_tables(tables) if taken else None, refused

    def _commit_file(
        self, due: list[PendingRow], at: list[int], values: np.ndarray, late: list[LateOutcome], table: pa.Table
    ) -> None:
        """Write a file and the state that it completes; `at` has the place in it of each row that is not left out."""
        number, overdue = self._folder.next, len(self._matcher.late)
        rows = iter(at)
        places = [RowLocation(number, NOWHERE if row.left_out else next(rows)) for row in due]
        self._matcher.pop_rows(len(due), places)
        self._matcher.close([correction.outcome for correction in late], "late")
        newest_s = max((row.time_s for row in due), default=None)
        keys = [row.key for row in due if not row.left_out]
        disowned = [row.key for row in due if row.left_out == "disowned"]
        self._write(table, newest_s, disowned)
        if newest_s is not None:
            self._add_emitted(number, keys, np.array(at, np.int64), values > 0, newest_s, disowned)
            # Rows whose correction is pending count as positives as well.
            self._emitted.find([correction.key for correction in self._matcher.late[overdue:]], taken=True)

    def _add_emitted(
        self,
        number: int,
        keys: list[bytes],
        rows: np.ndarray,
        positive: np.ndarray,
        newest_s: float,
        disowned: Sequence[bytes],
    ) -> None:
        nowhere = np.full(len(disowned), NOWHERE)
        rows, positive = np.concatenate([rows, nowhere]), np.concatenate([positive, nowhere > 0])
        self._emitted.add(number, [*keys, *disowned], rows, positive, newest_s)

    def _fits(self, table: pa.Table, late_outcomes: list[LateOutcome]) -> np.ndarray:
        """Return bool [n]: the row has the outcome's key (hashes may collide) and is recent enough."""
        keys, times_s = self._keys_of(table), seconds(table[TIME])
        return np.array(
            [
                key == late.key and late.outcome.time_s - time_s <= self.settings.late_s
                for late, key, time_s in zip(late_outcomes, keys, times_s.tolist())
            ],
            bool,
        )

    def _write(self, table: pa.Table, newest_s: float | None, disowned: Sequence[bytes]) -> None:
        self._give_up()
        outcomes = self._matcher.open_outcomes()
        state = JoinState(
            self.model,
            self.settings.lasting(),
            self._next_row,
            outcomes,
            self._matcher.counts,
            self._share.to_json(),
            self._windows.to_json(),
            self._until_s,
            newest_s,
            min((late.place.file for late in self._matcher.late), default=self._folder.next),
            tuple(disowned),
        )
        try:
            self._folder.write(table, state.to_json())
        except OSError as error:
            raise BadInput(f"--out: cannot write to the folder: {error.strerror}") from None
        self._kept = self._next_row, outcomes.first

    def _report(self) -> None:
        self._reach()
        self._late_share = self._share.share(self._until_s)
        lines = self._windows.lines(self._late_share, self._until_s - max(self.settings.wait_s, self.settings.late_s))
        write_lines(self._folder.folder / WINDOWS, lines)
        judged = [line for line in lines if line["calibration"] is not None]
        self._calibration = judged[-1]["calibration"] if judged else float("nan")

    def _reach(self) -> None:
        """Advance the time before which every row and outcome has its fate."""
        self._until_s = max(self._until_s, min(self._read_until_s, self._matcher.settled_s))

    def _give_up(self) -> None:
        """Count outcomes as unmatched whose row would have been read by now."""
        before_s = self._rows.read_s - self.settings.lag_s - self.settings.wait_s
        times_s = np.array(self._matcher.give_up(before_s))
        if len(times_s):
            self._windows.add(times_s, unmatched=np.ones(len(times_s)))

    def _forget(self) -> None:
        """Drop rows, windows and input that cannot be needed any more."""
        oldest_s = self._until_s - max(self.settings.wait_s, self.settings.late_s) - self.settings.lag_s
        if self._outcomes.position >= self._read_before:
            self._emitted.forget(oldest_s)
        self._windows.forget(oldest_s - self.settings.window_s)
        self._share.forget(self._until_s)
        self._rows.source.forget(lambda: self._kept[0])
        self._outcomes.source.forget(lambda: self._kept[1])

    def _recall(self, oldest: int) -> None:
        """Index the recently emitted rows again, from file `oldest` on at the latest, and mark the positives."""
        last_s, late_keys = max(self.settings.wait_s, self.settings.late_s), []
        oldest_s = self._until_s - last_s - self.settings.lag_s
        files: list[tuple[int, float | None, Sequence[bytes]]] = []
        for number in self._folder.newest_first():
            state = JoinState.from_json(self._folder.state_of(number))
            newest_s = state.newest_s
            if newest_s is not None and newest_s < oldest_s and number < oldest:
                break
            files.append((number, newest_s, state.disowned))
        for number, newest_s, disowned in reversed(files):
            table = self._folder.columns(number, [REQUEST, self.settings.key_column, LABEL, LATE])
            late = table[LATE].to_numpy()
            late_keys += self._keys_of(table.filter(pa.array(late)))
            if newest_s is not None:
                in_time = np.flatnonzero(~late)
                keys = self._keys_of(table.take(pa.array(in_time)))
                positive = table[LABEL].to_numpy()[in_time] > 0
                self._add_emitted(number, keys, in_time, positive, newest_s, disowned)
        self._emitted.find(late_keys, taken=True)

    def _keys_of(self, table: pa.Table) -> list[bytes]:
        requests, names = (filled(table, name).to_pylist() for name in (REQUEST, self.settings.key_column))
        return [_key((request or "").encode(), name) for request, name in zip(requests, names)]

    def _journal_of(self, context: ErrorContext, stream: Stream) -> StreamJournal:
        path = self._folder.books / f"{context.field.removeprefix('--')}.journal"
        return StreamJournal(path, stream.identity, context=context)

    def _check(self, state: JoinState) -> None:
        started = {**state.settings, "model": state.model}
        requested = {**self.settings.lasting(), "model": self.settings.model or state.model}
        for name, value in started.items():
            if requested[name] != value:
                raise BadInput(f"--{name}: expected {value}, as --out was started with, got {requested[name]}")


def _keys(batch: Batch, schema: Schema) -> list[bytes]:
    columns: list[Any] = [batch.columns[name] for name in schema.names]
    return [_key(request, name) for request, name in zip(*(column.tolist() for column in columns))]


def _key(request: bytes, name: int | str | bytes) -> bytes:
    """Join request and name; the length in front keeps different pairs apart."""
    named = b"%d" % name if isinstance(name, int) else name.encode() if isinstance(name, str) else name
    return len(request).to_bytes(4, "little") + request + named


def _scores(table: pa.Table, score: str) -> np.ndarray:
    """Return float64 [n]; NaN scores become 0."""
    return np.nan_to_num(np.asarray(table[score_column(table, score)].to_numpy(), np.float64))


def _by_generation(table: pa.Table, scores: np.ndarray, labels: np.ndarray) -> dict[str, ScoreSums]:
    generations = np.array(table[GENERATION].to_pylist())
    sums = {}
    for generation in np.unique(generations).tolist():
        chosen = generations == generation
        sums[generation] = ScoreSums(float(scores[chosen].sum()), float(labels[chosen].sum()), int(chosen.sum()))
    return sums
