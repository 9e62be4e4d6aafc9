"""A stream as a source of rows with numbers, the same ones whoever runs again.

A row has its number for good once its segment is in the journal (models.streams.stream_journal), which is before
anybody has it. So a run's position is what it is for a table: the number of the row to learn next; a crash, a rollback
or another epoch reads the same rows again. A row that is not sound has a number too, is told, and is left out: batches
are cut there.

Two ways to read
- batches(): what has come so far, and then the end; as any source.
- arriving(): goes on. A batch is given once it is full, or linger_s after its first row came; None where nothing has
  come for a moment, so that whoever takes them can look at the clock.

Threads: one reader at a time takes what has come (the lock); any thread may ask where the stream stands.

Too many rows that are not sound are no accident but another format: MOST_REJECTED of the last REJECTED_ROWS end the
reading with the reason of the last one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from freshet_serving.models.data.canonical import CanonicalColumns, join_parts
from freshet_serving.models.data.source import Batch, Schema, check_position
from freshet_serving.models.streams.stream import Segment, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.stream_rows import RejectedRows, sound_parts
from freshet_serving.processor.errors import BadInput

LINGER_S, POLL_S = 0.5, 0.1
FORGET_SEGMENTS = 1000
REJECTED_ROWS, MOST_REJECTED = 1000, 0.5

Part = tuple[int, list[pa.Array]]
"""A run of sound rows: its first row's number and its columns."""


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """How far a stream has been taken. rows: that have a number; waiting, lost, trouble: see Unread; rejected: rows
    that were read and are not sound, and why the last one was not. aside, why_aside, looks: see Unread."""

    rows: int
    waiting: int
    lost: int
    rejected: int
    why: str
    trouble: str
    aside: int = 0
    why_aside: str = ""
    looks: int | None = None


class FollowedSource:
    """The rows of a stream that grows."""

    def __init__(
        self,
        stream: Stream,
        journal: StreamJournal,
        schema: Schema,
        endless: bool,
        now_s: Callable[[], float] = time.monotonic,
        linger_s: float = LINGER_S,
    ) -> None:
        """endless: arriving() waits for more; otherwise it ends with what is there. linger_s: how long its rows wait
        for a batch to be full; with 0 it gives None only where it has given everything. Raises BadInput where the
        stream cannot be read."""
        self.schema, self.endless = schema, endless
        self._columns = CanonicalColumns(schema, text=False)
        self._stream, self._journal = stream, journal
        self._now_s, self._linger_s = now_s, linger_s
        self._lock = threading.Lock()
        # Rejected rows: how many, why the last, up to which number they are counted, and those of the newest rows.
        self._rejected, self._why, self._counted_row = 0, "", 0
        self._seen_rows = self._seen_rejected = 0
        self._forget_at = FORGET_SEGMENTS
        self._told = IngestStatus(0, 0, 0, 0, "", "")
        stream.begin(journal.segments)

    def count_rows(self) -> int:
        """The rows that have come so far."""
        while self._take(0.0):
            pass
        return self._journal.rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """See Source.batches, but that a batch ends before a row that is not sound."""
        check_position(rows, start)
        for batch in self._cut(rows, start, endless=False):
            if batch is not None:
                yield batch

    def arriving(self, rows: int, start: int) -> Iterator[Batch | None]:
        """Batches of at most so many rows from row `start` on as they come, None where there is none yet."""
        check_position(rows, start)
        if start > self._journal.rows and start > self.count_rows():
            raise BadInput(f"data: row {start:,} comes next, but the stream has had {self._journal.rows:,} rows so far")
        return self._cut(rows, start, self.endless)

    def ingest_status(self) -> IngestStatus:
        """Where the stream stands."""
        backlog = self._stream.backlog()
        rejected, why = self._rejected, self._why
        return IngestStatus(
            self._journal.rows,
            backlog.rows,
            backlog.lost,
            rejected,
            why,
            backlog.trouble,
            backlog.aside,
            backlog.why_aside,
            backlog.looks,
        )

    def news(self) -> list[str]:
        """What of that is worth a line since this was last asked."""
        before, now = self._told, self.ingest_status()
        self._told = now
        lines = []
        if now.rejected > before.rejected:
            lines.append(f"{now.rejected - before.rejected:,} rows are not sound and left out; the last: {now.why}")
        if now.lost > before.lost:
            lines.append(f"{now.lost - before.lost:,} rows of the stream were gone before they could be read")
        if now.aside > before.aside:
            lines.append(f"{now.aside - before.aside:,} files were set aside; the last: {now.why_aside}")
        if now.trouble != before.trouble:
            lines.append(f"the stream cannot be read: {now.trouble}" if now.trouble else "the stream can be read again")
        return lines

    def forget(self, oldest_row: Callable[[], int]) -> None:
        """Nobody reads rows before oldest_row() again; asked now and then."""
        if len(self._journal) < self._forget_at:
            return
        with self._lock:
            self._journal.forget(oldest_row(), self._stream.can_forget)
            self._forget_at = max(FORGET_SEGMENTS, 2 * len(self._journal))

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def _take(self, wait_s: float) -> bool:
        """Gives what has come its numbers; whether anything has."""
        with self._lock:
            found = self._stream.poll(wait_s)
            if found:
                self._journal.append(found)
            return bool(found)

    def _cut(self, rows: int, start: int, endless: bool) -> Iterator[Batch | None]:
        """Parts cut and joined into batches of `rows`, shorter where the next row does not follow."""
        held: list[list[pa.Array]] = []
        count, at, since_s = 0, start, 0.0

        def joined() -> Batch:
            nonlocal held, count
            batch, held, count = self._columns.batch(join_parts(held), at - count), [], 0
            return batch

        for part in self._parts(start, endless):
            if part is not None:
                row, arrays = part
                if count and row != at:
                    yield joined()
                first, at = 0, row
                while first < len(arrays[0]):
                    taken = min(rows - count, len(arrays[0]) - first)
                    since_s = since_s if count else self._now_s()
                    held.append([array.slice(first, taken) for array in arrays])
                    first, count, at = first + taken, count + taken, at + taken
                    if count == rows:
                        yield joined()
            if count and endless and self._now_s() - since_s >= self._linger_s:
                yield joined()
            elif part is None:
                yield None
        if count:
            yield joined()

    def _parts(self, start: int, endless: bool) -> Iterator[Part | None]:
        """Runs of sound rows from row `start` on; None where nothing has come for a moment."""
        row = start
        while True:
            for first, segment in self._journal.since(row):
                yield from self._sound(segment, first, row)
                row = first + segment.rows
            if self._take(POLL_S if endless else 0.0):
                continue
            if not endless:
                return
            yield None

    def _sound(self, segment: Segment, first: int, start: int) -> Iterator[Part]:
        """The sound rows of a segment whose first row has number `first`, from number `start` on."""
        for rows in self._stream.read(segment):
            begin, first = first, first + len(rows)
            if first <= start:
                continue
            if isinstance(rows, RejectedRows):
                self._reject(begin, len(rows), rows.why, damage=rows.damage)
                continue
            for row, made in sound_parts(rows, max(0, start - begin), len(rows)):
                if isinstance(made, str):
                    self._reject(begin + row, 1, made)
                else:
                    self._note(len(made[0]), 0)
                    yield begin + row, made

    def _reject(self, row: int, rows: int, why: str, damage: bool = False) -> None:
        if row >= self._counted_row:
            self._rejected, self._counted_row = self._rejected + rows, row + rows
        self._why = why
        if not damage:
            self._note(rows, rows)

    def _note(self, rows: int, rejected: int) -> None:
        self._seen_rows, self._seen_rejected = self._seen_rows + rows, self._seen_rejected + rejected
        if self._seen_rows < REJECTED_ROWS:
            return
        if self._seen_rejected > MOST_REJECTED * self._seen_rows:
            raise BadInput(
                f"data: {self._seen_rejected:,} of {self._seen_rows:,} rows that followed each other are not sound;"
                f" the last: {self._why}"
            )
        self._seen_rows = self._seen_rejected = 0
