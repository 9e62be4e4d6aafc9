"""Read a stream as a source of rows with permanent numbers.

A row has its number for good once its segment is in the journal (models.streams.stream_journal), which happens before
any consumer receives it. So a run's position is the number of the next row to train on, as for a table, and a crash, a
rollback or another epoch reads the same rows again. An invalid row has a number too, is reported, and is left out:
batches are cut there.

Two ways to read
- batches(): the rows that have arrived so far, then the end, as any source.
- arriving(): yields a batch once it is full, or linger_s after its first row arrived, and None if nothing has arrived
  for a moment, so that the consumer can check the time.

Threads: one reader at a time polls the stream (the lock); any thread may read its status.

Many invalid rows are no accident but another format: if more than the fraction MOST_REJECTED of REJECTED_ROWS
consecutive rows are invalid, reading ends with the reason of the last one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from freshet_serving.models.data.canonical import CanonicalColumns, join_parts
from freshet_serving.models.data.source import Batch, Schema, Source, check_position, layer_of
from freshet_serving.models.streams.stream import Segment, Stream, StreamBacklog
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.stream_rows import RejectedRows, sound_parts
from freshet_serving.processor.errors import BadInput

LINGER_S, POLL_S = 0.5, 0.1
FORGET_SEGMENTS = 1000
REJECTED_ROWS, MOST_REJECTED = 1000, 0.5

Part = tuple[int, list[pa.Array]]
"""A run of valid rows: its first row's number and its columns."""


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """Progress of reading a stream, and what is behind it; `why` is the reason of the last rejected row."""

    rows: int = 0
    rejected: int = 0
    why: str = ""
    backlog: StreamBacklog = StreamBacklog()


def followed_source(source: Source) -> FollowedSource | None:
    """Return the stream below what is joined to its rows; None for stored data."""
    return layer_of(source, FollowedSource)


class FollowedSource:
    def __init__(
        self,
        stream: Stream,
        journal: StreamJournal,
        schema: Schema,
        endless: bool,
        now_s: Callable[[], float] = time.monotonic,
        linger_s: float = LINGER_S,
    ) -> None:
        """Start to read a stream. Raises BadInput.

        Args:
            endless: arriving() waits for more rows; otherwise it ends with the existing ones.
            linger_s: Maximum time that rows wait for a full batch; with 0, arriving() yields None only after all rows.
        """
        self.schema, self.endless = schema, endless
        self._columns = CanonicalColumns(schema, text=False)
        self._stream, self._journal = stream, journal
        self._now_s, self._linger_s = now_s, linger_s
        self._lock = threading.Lock()
        # Rejected rows: their number, the reason of the last one, and the row up to which they are counted.
        # Below: counts of the newest rows.
        self._rejected, self._why, self._counted_row = 0, "", 0
        self._seen_rows = self._seen_rejected = 0
        self._forget_at = FORGET_SEGMENTS
        self._reported = IngestStatus()
        # Segments that the stream has handed out once, and the journal could not record.
        self._unrecorded = list[Segment]()
        stream.begin(journal.segments)

    def count_rows(self) -> int:
        """Return the number of rows that have arrived so far."""
        while self._take(0.0):
            pass
        return self._journal.rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as Source.batches does, except that a batch also ends before an invalid row."""
        check_position(rows, start)
        for batch in self._cut(rows, start, endless=False):
            if batch is not None:
                yield batch

    def arriving(self, rows: int, start: int) -> Iterator[Batch | None]:
        """Yield batches of at most `rows` rows as they arrive, and None while there are none."""
        check_position(rows, start)
        if start > self._journal.rows and start > self.count_rows():
            raise BadInput(
                f"data: cannot continue at row {start:,}: the stream has only {self._journal.rows:,} rows so far"
            )
        return self._cut(rows, start, self.endless)

    def ingest_status(self) -> IngestStatus:
        backlog = self._stream.backlog()
        return IngestStatus(self._journal.rows, self._rejected, self._why, backlog)

    def news(self) -> list[str]:
        """Return log lines about changes of the status since the last call."""
        status = self.ingest_status()
        rejected, before, now = status.rejected - self._reported.rejected, self._reported.backlog, status.backlog
        self._reported = status
        lines = []
        if rejected > 0:
            lines.append(f"{rejected:,} invalid rows were skipped; the last: {status.why}")
        if now.lost > before.lost:
            lines.append(f"{now.lost - before.lost:,} rows of the stream were deleted before they were read")
        if now.aside > before.aside:
            lines.append(f"{now.aside - before.aside:,} files were set aside; the last: {now.why_aside}")
        if now.trouble != before.trouble:
            lines.append(f"the stream cannot be read: {now.trouble}" if now.trouble else "the stream can be read again")
        return lines

    def forget(self, oldest_row: Callable[[], int]) -> None:
        """Drop journal entries of rows before oldest_row(), which are never read again.

        Called often: it calls oldest_row only now and then.
        """
        if len(self._journal) < self._forget_at:
            return
        with self._lock:
            self._journal.forget(oldest_row(), self._stream.can_forget)
            self._forget_at = max(FORGET_SEGMENTS, 2 * len(self._journal))

    def close(self) -> None:
        with self._lock:
            self._stream.close()

    def _take(self, wait_s: float) -> bool:
        """Poll the stream and number the new segments; return True if there are any."""
        with self._lock:
            segments = self._unrecorded = self._unrecorded or self._stream.poll(wait_s)
            if segments:
                self._journal.append(segments)
                self._unrecorded = []
            return bool(segments)

    def _cut(self, rows: int, start: int, endless: bool) -> Iterator[Batch | None]:
        """Recut parts into batches of `rows` rows, shorter where the next row does not follow."""
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
        """Yield runs of valid rows from row `start` on; None if nothing has arrived for a moment."""
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
        """Yield the valid rows of a segment whose first row has number `first`, from number `start` on."""
        for rows in self._stream.read(segment):
            begin, first = first, first + len(rows)
            if first <= start:
                continue
            if isinstance(rows, RejectedRows):
                self._reject(begin, len(rows), rows.why, damage=rows.damage)
                continue
            for row, arrays in sound_parts(rows, max(0, start - begin), len(rows)):
                if isinstance(arrays, str):
                    self._reject(begin + row, 1, arrays)
                else:
                    self._note(len(arrays[0]), 0)
                    yield begin + row, arrays

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
                f"data: {self._seen_rejected:,} of {self._seen_rows:,} consecutive rows are invalid;"
                f" the last: {self._why}"
            )
        self._seen_rows = self._seen_rejected = 0
