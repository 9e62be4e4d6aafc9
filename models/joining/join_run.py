"""`freshet join`: recordings and outcomes in, labelled rows out, exactly once from the recording on.

Both streams are read side by side, the one that is behind first, so that however much lies there only rows and outcomes
of about the same times are in memory. A row leaves once outcomes have been read for wait_s, and lag_s more, after it.

Invariants
- What has been emitted is a prefix of the recordings' rows, and the state that says so is in the file that emits it
  (models.joining.joined_folder). A kill at any moment costs what has been read since, which is read again.
- A journal's line is durable before rows of its piece are matched (models.streams.stream_journal), so numbers in a
  state
  mean the same rows after a crash.
- A file has rows of one set of columns; freshet.late tells those that are there once more. Rows that are left out
  (models.joining.matching) have left with the file that has the rows before and after them.

Threads: one runs; any may ask where it stands, and stop it. Memory: MOST_WAITING rows at most, after which recordings
are read no further until some have left (models.joining.matching says what each costs); 17 bytes for each row of the
last late_s seconds (wait_s, where that is longer), read from the joined folder at the start.
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

from freshet_serving.models.data.source import Batch, Schema
from freshet_serving.models.joining.emitted_rows import NOWHERE, EmittedRows, RowLocation
from freshet_serving.models.joining.join_settings import JoinSettings
from freshet_serving.models.joining.join_state import JoinState
from freshet_serving.models.joining.join_windows import JoinWindows, write_lines
from freshet_serving.models.joining.joined_folder import (
    BOOKS,
    LABEL,
    LATE,
    ROWS_NBYTES,
    JoinedFolder,
    labelled,
    seconds,
)
from freshet_serving.models.joining.late_share import LateShare
from freshet_serving.models.joining.matching import JoinCounts, LateOutcome, Matcher, PendingRow
from freshet_serving.models.joining.recording_folder import RECORDINGS, RecordingFolder, score_column
from freshet_serving.models.joining.repeated_ids import repeat_one_request
from freshet_serving.models.joining.timed_stream import TimedStream
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.open_rows import open_stream
from freshet_serving.models.streams.stream import ErrorContext, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository import GENERATION, REQUEST, TIME

MOST_WAITING = 10_000_000
MANY_HELD = 200_000
NOTED_S = 60.0
WINDOWS = f"{BOOKS}/windows"
OUTCOMES = ErrorContext("--outcomes", RECORDINGS.anew)


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """What a generation scored rows whose window has ended: sums of scores and of labels that came in time."""

    scores: float
    labels: float
    rows: int


@dataclass(frozen=True, slots=True)
class JoinStatus:
    """Where a join stands. waiting, held, emitted: rows whose window lasts, outcomes without a row, rows that a late
    outcome would find. rows_s, outcomes_s: up to which times the streams have been read. rejected: rows of both streams
    that are not sound. files_aside: of both, that cannot be read. lost_files: of recordings, gone before they were
    read. calibration: of the newest window."""

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
    """One join; goes on by itself where its folder was left."""

    def __init__(
        self,
        settings: JoinSettings,
        unix_s: Callable[[], float] = time.time,
        tell: Callable[[str, Mapping[str, ScoreSums]], None] | None = None,
        outcomes: Stream | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """tell: is given (model, sums by generation) of every file, after it is there. outcomes: in place of what
        settings name. note: is given lines for people. Raises BadInput, or Corrupt, in one line."""
        self.settings, self._unix_s, self._tell = settings, unix_s, tell or (lambda model, sums: None)
        self._note, self._noted_s, self._disowned = note or (lambda line: None), float("-inf"), 0
        self._stopped = threading.Event()
        mine, theirs = settings.schemas()
        self._folder = JoinedFolder(Path(settings.out))
        with ExitStack() as failing:
            failing.callback(self._folder.close)
            self._open(outcomes, mine, theirs)
            failing.pop_all()

    def _open(self, outcomes: Stream | None, mine: Schema, theirs: Schema) -> None:
        """Opens both streams where the folder's newest file left them."""
        settings, unix_s = self.settings, self._unix_s
        said = self._folder.state()
        state = JoinState.from_json(said) if said is not None else JoinState()
        if said is not None:
            self._check(state)
        self._recordings = RecordingFolder(settings.recordings, settings.model or state.model, mine)
        outcomes = outcomes or open_stream(settings.format, settings.outcomes, theirs, OUTCOMES)
        self._journal = self._journal_of(RECORDINGS, self._recordings)
        rows = FollowedSource(self._recordings, self._journal, mine, settings.follow, linger_s=0.0)
        hits = FollowedSource(outcomes, self._journal_of(OUTCOMES, outcomes), theirs, settings.follow, linger_s=0.0)
        known = state.outcomes
        self._rows = TimedStream(rows, state.recordings, unix_s)
        self._outcomes = TimedStream(hits, known.first, unix_s)
        self._share = LateShare(settings.wait_s, settings.late_s, state.share)
        self._windows = JoinWindows(settings.window_s, state.windows)
        self._emitted = EmittedRows()
        self._until_s = state.until_s
        self._read_before = known.end
        self._recall(state.oldest_late)
        self._matcher = Matcher(settings.wait_s, settings.late_s, self._emitted, known, state.counts)
        self._next_row = state.recordings
        # What a restart reads again: rows and outcomes from these numbers on.
        self._kept = self._next_row, known.first
        self._committed_s = unix_s()
        self._late_share, self._calibration = self._share.share(self._until_s), float("nan")

    @property
    def model(self) -> str:
        """The model whose recordings are joined; "" as long as there are none."""
        return self._recordings.model

    def run(self) -> None:
        """Joins until stop(), or, where it does not follow, what is there."""
        try:
            while not self._stopped.is_set() and not (self._rows.ended and self._outcomes.ended):
                self.run_once()
            self.commit(ending=True)
        finally:
            self._folder.close()
            for arrivals in (self._rows, self._outcomes):
                arrivals.source.close()

    def stop(self) -> None:
        """Ends run() after what it is at; for any thread."""
        self._stopped.set()

    def run_once(self) -> None:
        """Takes what has come of the stream that is behind, and emits what is due, if it is time."""
        full = len(self._matcher) >= MOST_WAITING
        ahead = self._rows.read_s > self._outcomes.read_s or full or self._rows.ended
        if ahead and not self._outcomes.ended:
            # A stream that cannot be read is behind all the time: then the other one goes on.
            if not self._take_outcomes() and not full and not self._rows.ended:
                self._take_rows()
        elif not self._rows.ended and not self._take_rows() and not self._outcomes.ended:
            self._take_outcomes()
        if self._matcher.held > MANY_HELD:
            self._give_up()
        self.commit()

    def commit(self, ending: bool = False) -> None:
        """Emits what is due, once every_s seconds have passed or a whole file's rows are due; ending: now."""
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
            if not emitted:
                break

    def status(self) -> JoinStatus:
        """Where the join stands, for any thread."""
        intakes = self._rows.source.ingest_status(), self._outcomes.source.ingest_status()
        return JoinStatus(
            counts=JoinCounts(**asdict(self._matcher.counts)),
            files=self._folder.next - 1,
            waiting=len(self._matcher),
            held=self._matcher.held,
            emitted=len(self._emitted),
            rejected=sum(ingest_status.rejected for ingest_status in intakes),
            lost_files=self._recordings.lost_files,
            files_aside=sum(ingest_status.aside for ingest_status in intakes),
            lost_outcomes=intakes[1].lost,
            late_share=self._late_share,
            calibration=self._calibration,
            rows_s=self._rows.read_s,
            outcomes_s=self._outcomes.read_s,
            trouble="; ".join(ingest_status.trouble for ingest_status in intakes if ingest_status.trouble),
        )

    @property
    def _rows_until_s(self) -> float:
        """Recordings of times before this have been read."""
        return self._rows.read_s - self.settings.lag_s

    @property
    def _read_until_s(self) -> float:
        """Outcomes of times before this have been read, and recordings too, but where no more of them are read before
        some have left."""
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
        """Emits the first rows that are due, and rows once more that have become positives, as far as they have the
        same columns; how many rows have left and outcomes are done."""
        due = self._matcher.due(self._read_until_s, self.settings.file_rows)
        count, rows = self._recordings.recorded(self._journal, [row.number for row in due]) if due else (0, None)
        due = due[:count]
        if due:
            self._next_row = due[-1].number + 1
            self._settle(due)
        if due and rows is None:
            self._matcher.pop_rows(count, None)
            return count
        own = [row for row in due if not row.left_out]
        if rows is not None and len(own) < count:
            rows = rows.filter(pa.array([not row.left_out for row in due]))
        late, more, refused = self._corrections(rows)
        self._matcher.close([one.outcome for one in refused], "too_late")
        tables = [table for table in (rows, more) if table is not None]
        if not tables:
            return len(refused)
        values = np.array([self._matcher.in_time(row) for row in own])
        weights = self._count_rows(rows, values) if rows is not None else np.zeros(0)
        corrected = np.array([one.outcome.value for one in late])
        if more is not None:
            self._count_late(more, late, corrected)
        # Rows keep their order, and corrections are spread among them: a batch of positives alone would mislead who
        # learns it.
        places = np.concatenate([(np.arange(n) + 0.5) / max(1, n) for n in (len(own), len(late))])
        order = np.argsort(places, kind="stable")
        at = np.argsort(order)[: len(own)].tolist()
        table = labelled(
            pa.concat_tables(tables).combine_chunks().take(pa.array(order)),
            np.concatenate([values, np.ones(len(late))])[order],
            np.concatenate([weights, corrected])[order],
            order >= len(own),
        )
        self._commit_file(due, at, values, late, table)
        if rows is not None and own:
            self._tell(self.model, _by_generation(rows, _scores(rows, self.settings.score), values))
        return count + len(late) + len(refused)

    def _settle(self, due: list[PendingRow]) -> None:
        """Decides which of the rows that leave are left out, as their id is there more than once."""
        contested = self._matcher.contested(due)
        if not contested:
            return
        alike = repeat_one_request(contested, partial(self._recordings.recorded, self._journal), self._folder.recorded)
        for row, one_request in zip(contested, alike):
            self._matcher.decide(row, one_request)
        self._disowned += alike.count(False)
        if self._disowned and self._unix_s() - self._noted_s >= NOTED_S:
            self._note(
                f"expected one request of each id, got several of the ids of {self._disowned:,} rows: they are left"
                " out and their outcomes are nobody's; give each request an id of its own that nobody can guess"
            )
            self._noted_s, self._disowned = self._unix_s(), 0

    def _count_rows(self, rows: pa.Table, values: np.ndarray) -> np.ndarray:
        """Counts rows that leave; how much each is to weigh."""
        times_s, scores = seconds(rows[TIME]), _scores(rows, self.settings.score)
        weights = np.where(values > 0, 1.0, self._share.weights(scores, self._until_s))
        self._share.add_rows(times_s, scores, values)
        each = np.ones(len(values))
        self._windows.add(times_s, rows=each, positives=values, scores=scores, weights=weights)
        return weights

    def _count_late(self, rows: pa.Table, late: list[LateOutcome], values: np.ndarray) -> None:
        times_s = seconds(rows[TIME])
        self._share.add_late(times_s, np.array([one.outcome.time_s for one in late]) - times_s, values)
        self._windows.add(times_s, late=values, weights=values)

    def _corrections(self, rows: pa.Table | None) -> tuple[list[LateOutcome], pa.Table | None, list[LateOutcome]]:
        """Late outcomes with their rows, of the columns of `rows` where there are any, and those that cannot be
        corrected; neither waits any more."""
        taken: list[LateOutcome] = []
        refused: list[LateOutcome] = []
        tables: list[pa.Table] = []
        by_file: dict[int, list[LateOutcome]] = {}
        for one in self._matcher.corrections(self._rows_until_s, self.settings.file_rows):
            by_file.setdefault(one.place.file, []).append(one)
        for number, mine in sorted(by_file.items()):
            if sum(table.nbytes for table in tables) >= ROWS_NBYTES:
                break
            table = self._folder.recorded(number, [one.place.row for one in mine])
            if table is None:
                refused += mine
                continue
            like = rows if rows is not None else (tables or [table])[0]
            if not table.schema.equals(like.schema, check_metadata=True):
                continue
            fits = self._fits(table, mine)
            taken += [one for one, fit in zip(mine, fits) if fit]
            refused += [one for one, fit in zip(mine, fits) if not fit]
            tables.append(table.filter(pa.array(fits)))
        done = {one.outcome.number for one in (*taken, *refused)}
        self._matcher.late = [one for one in self._matcher.late if one.outcome.number not in done]
        return taken, pa.concat_tables(tables) if taken else None, refused

    def _commit_file(
        self, due: list[PendingRow], at: list[int], values: np.ndarray, late: list[LateOutcome], table: pa.Table
    ) -> None:
        """Writes a file, with the state that it completes. at: where in it each row is that is not left out."""
        number, overdue = self._folder.next, len(self._matcher.late)
        rows = iter(at)
        places = [RowLocation(number, NOWHERE if row.left_out else next(rows)) for row in due]
        self._matcher.pop_rows(len(due), places)
        self._matcher.close([one.outcome for one in late], "late")
        newest_s = max((row.time_s for row in due), default=None)
        own = [row.key for row in due if not row.left_out]
        disowned = [row.key for row in due if row.left_out == "disowned"]
        self._write(table, newest_s, disowned)
        if newest_s is not None:
            self._add_emitted(number, own, np.array(at, np.int64), values > 0, newest_s, disowned)
            # Those whose correction is on its way are positives as well.
            self._emitted.find([one.key for one in self._matcher.late[overdue:]])

    def _add_emitted(
        self,
        number: int,
        keys: list[bytes],
        rows: np.ndarray,
        positive: np.ndarray,
        newest_s: float,
        disowned: Sequence[bytes],
    ) -> None:
        """Rows that have left with a file, and keys that nobody owns."""
        nowhere = np.full(len(disowned), NOWHERE)
        rows, positive = np.concatenate([rows, nowhere]), np.concatenate([positive, nowhere > 0])
        self._emitted.add(number, [*keys, *disowned], rows, positive, newest_s)

    def _fits(self, table: pa.Table, lates: list[LateOutcome]) -> np.ndarray:
        """Whether each is the row that its outcome means (a hash may be another's), and recent enough. bool [n]"""
        keys, times_s = self._keys_of(table), seconds(table[TIME])
        return np.array(
            [
                key == late.key and late.outcome.time_s - time_s <= self.settings.late_s
                for late, key, time_s in zip(lates, keys, times_s.tolist())
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
            raise BadInput(f"--out: a folder that can be written wanted: {error.strerror}") from None
        self._kept = self._next_row, outcomes.first

    def _report(self) -> None:
        """Writes the windows' lines."""
        self._reach()
        self._late_share = self._share.share(self._until_s)
        lines = self._windows.lines(self._late_share, self._until_s - max(self.settings.wait_s, self.settings.late_s))
        write_lines(self._folder.folder / WINDOWS, lines)
        told = [line for line in lines if line["calibration"] is not None]
        self._calibration = told[-1]["calibration"] if told else float("nan")

    def _reach(self) -> None:
        """Up to which time all is decided that has been read."""
        self._until_s = max(self._until_s, min(self._read_until_s, self._matcher.settled_s))

    def _give_up(self) -> None:
        """Outcomes whose row would have been read by now are unmatched."""
        before_s = self._rows.read_s - self.settings.lag_s - self.settings.wait_s
        times_s = np.array(self._matcher.give_up(before_s))
        if len(times_s):
            self._windows.add(times_s, unmatched=np.ones(len(times_s)))

    def _forget(self) -> None:
        """Lets go of what nothing can need any more."""
        oldest_s = self._until_s - max(self.settings.wait_s, self.settings.late_s) - self.settings.lag_s
        if self._outcomes.position >= self._read_before:
            self._emitted.forget(oldest_s)
        self._windows.forget(oldest_s - self.settings.window_s)
        self._share.forget(self._until_s)
        self._rows.source.forget(lambda: self._kept[0])
        self._outcomes.source.forget(lambda: self._kept[1])

    def _recall(self, oldest: int) -> None:
        """Finds the rows that have left in the last while, those of files from number `oldest` on, and which of them
        are positives."""
        last_s, corrected = max(self.settings.wait_s, self.settings.late_s), []
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
            corrected += self._keys_of(table.filter(pa.array(late)))
            if newest_s is not None:
                left = np.flatnonzero(~late)
                keys = self._keys_of(table.take(pa.array(left)))
                positive = table[LABEL].to_numpy()[left] > 0
                self._add_emitted(number, keys, left, positive, newest_s, disowned)
        self._emitted.find(corrected)

    def _keys_of(self, table: pa.Table) -> list[bytes]:
        mine = table.select([REQUEST, self.settings.key_column])
        requests, names = (column.to_pylist() for column in mine.columns)
        return [_key((request or "").encode(), name) for request, name in zip(requests, names)]

    def _journal_of(self, context: ErrorContext, stream: Stream) -> StreamJournal:
        path = self._folder.books / f"{context.field.removeprefix('--')}.journal"
        return StreamJournal(path, stream.identity, context=context)

    def _check(self, state: JoinState) -> None:
        begun = {**state.settings, "model": state.model}
        asked = {**self.settings.lasting(), "model": self.settings.model or state.model}
        for name, value in begun.items():
            if asked[name] != value:
                raise BadInput(f"--{name}: {value} wanted, which --out was begun with, got {asked[name]}")


def _keys(batch: Batch, schema: Schema) -> list[bytes]:
    """What each row is known by: its request and its row number or item."""
    columns: list[Any] = [batch.columns[name] for name in schema.names]
    requests, names = columns
    return [_key(request, name) for request, name in zip(requests.tolist(), names.tolist())]


def _key(request: bytes, name: int | str | bytes) -> bytes:
    """The length in front tells any two pairs apart."""
    named = b"%d" % name if isinstance(name, int) else name.encode() if isinstance(name, str) else name
    return len(request).to_bytes(4, "little") + request + named


def _scores(table: pa.Table, score: str) -> np.ndarray:
    """float64 [n]; 0 for a score that is no number."""
    return np.nan_to_num(np.asarray(table[score_column(table, score)].to_numpy(), np.float64))


def _by_generation(table: pa.Table, scores: np.ndarray, labels: np.ndarray) -> dict[str, ScoreSums]:
    generations = np.array(table[GENERATION].to_pylist())
    found = {}
    for generation in np.unique(generations).tolist():
        mine = generations == generation
        found[generation] = ScoreSums(float(scores[mine].sum()), float(labels[mine].sum()), int(mine.sum()))
    return found
