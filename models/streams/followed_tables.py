"""Follow the tables that are joined to a followed stream: files that are replaced, and streams of records.

A file is the whole truth: a key that it no longer has is gone. Of a stream, or of a folder that receives Parquet files,
each row is a record: the newest one of a key counts, and none removes a key.

Invariants
- A read sees one whole content of the file, or all records of the stream up to one.
- A mark is durable before a row with it is joined or published: the file's content is in the copy, the record's segment
  in the journal. So after any crash a mark says the same, or it is of another identity, drawn anew.
- Without times, a key's row is the one known when the event arrived. An event that is read again, after a crash or a
  rollback, meets the rows known by then.
- What cannot be read leaves the table as it was, is reported once and counted, and is tried again: a file when it has
  changed, a stream at the next look.

Costs: one stat of a file each LOOK_S; it is read once it has not changed between two looks, or has at MOST_WAITS of
them. One poll of a stream each POLL_S, which takes over LOOK_ROWS or a quarter of the table; the copy is written when a
quarter is new, or some of it for KEEP_S. Looks take at most a tenth of the time, even if a server does not answer.
Memory: the whole table and, of a stream with times, what KEPT_S of events can see of the past.
"""

from __future__ import annotations

import glob
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.entity_table import EntitySource, read_rows
from freshet_serving.models.data.formats import STREAMS
from freshet_serving.models.data.joined_rows import JoinedSection
from freshet_serving.models.data.keyed_rows import Float64s, KeyedRows, join_rows
from freshet_serving.models.data.source import Batch, Schema, Source, layer_of
from freshet_serving.models.streams.followed_source import FollowedSource
from freshet_serving.models.streams.stream import ErrorContext, Stream
from freshet_serving.models.streams.stream_journal import StreamJournal
from freshet_serving.models.streams.table_copy import TableCopy, read_copy, write_copy
from freshet_serving.models.streams.table_state import NEVER, ChangedRows, TableState
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput

LOOK_S, POLL_S, RETRY_S = 1.0, 0.2, 30.0
KEPT_S, KEEP_S = 7 * 86_400.0, 600.0
MOST_WAITS = 5
LOOK_SHARE = 10
READ_ROWS, LOOK_ROWS = 1 << 14, 1 << 17
COPY, JOURNAL, FOLDER = "table.safetensors", "stream.journal", "tables"


class FollowedTable:
    """One table that changes. Thread-safe: one thread at a time looks at it, and nobody waits for that.

    Attributes:
        further: Fields that are not joined to rows.
        identity: What its marks belong to.
        trouble: Why its newest content cannot be read; "" if it can.
    """

    look_s, of_file = LOOK_S, True

    def __init__(self, section: JoinedSection, folder: Path, now_s: Callable[[], float]) -> None:
        """Take over the content of the table's own folder, which is made if necessary."""
        self.name, self.section, self.key = section.name, section.section, section.key_field
        self.further, self._data, self._once = section.further, section.data, section.once
        self.fields = (*section.fields, *section.further)
        folder.mkdir(parents=True, exist_ok=True)
        self._copy, self._now_s, self._lock = folder / COPY, now_s, threading.Lock()
        self._timed, self._next_s, self._horizon_s = bool(self._data.time), now_s() + self.look_s, NEVER
        self.trouble, self._reported = "", ""
        copy = read_copy(self._copy, self.key, self.fields, self._timed)
        self._known = copy if copy is not None and bool(copy.read) == self.of_file else None
        nothing = KeyedRows.none(self.key, self.fields, self._timed)
        self.identity, self._state = secrets.token_hex(8), TableState(nothing, nothing)
        if self._known is not None:
            self.identity = self._known.identity
            self._state = TableState(self._known.rows, nothing, self._known.mark)

    @property
    def mark(self) -> int:
        return self._state.mark

    def has(self, keys: Column) -> NDArray[np.bool_]:
        return self._state.has(keys)

    def columns(self, keys: Column, times: Float64s | None) -> dict[str, Column]:
        return self._state.columns(keys, times)

    def newest(self) -> ChangedRows:
        return self._state.all()

    def changed(self, since: int) -> ChangedRows:
        """Return the keys that have changed since a mark of this identity."""
        return self._state.changed(since)

    def forget(self, mark: int) -> None:
        """Drop keys that were gone by a mark: no run asks for changes since an earlier one."""
        if self._lock.acquire(blocking=False):
            # Else the next time will do: publishing does not wait for a file that is read.
            self._state = self._state.without_gone(mark)
            self._lock.release()

    def refresh(self, event_time: float | None = None) -> None:
        """Take over changes of the table, if a look is due and no other thread looks."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if event_time is not None:
                self._horizon_s = event_time - KEPT_S
            if self._now_s() >= self._next_s:
                self._next_s = self._now_s() + self._looked()
        finally:
            self._lock.release()

    def _looked(self) -> float:
        """Look, and return how many seconds to wait before the next look."""
        began_s, least_s = self._now_s(), self.look_s
        try:
            self.trouble = self._look()
        except BadInput as error:
            self.trouble = self._named(error)
        except OSError as error:
            self.trouble = f"{self.section}: the trainer's copy cannot be written: {error.strerror}"
            least_s = RETRY_S
        return max(least_s, LOOK_SHARE * (self._now_s() - began_s))

    def news(self) -> list[str]:
        before, self._reported = self._reported, self.trouble
        if self._reported == before:
            return []
        if not self._reported:
            return [f"{self.section}: can be read again"]
        return [f"{self._reported}; the last good content counts"]

    def _look(self) -> str:
        raise NotImplementedError

    def _named(self, error: BadInput) -> str:
        message = str(error).removeprefix("data: ")
        return message if message.startswith(self.section) else f"{self.section}: {message}"

    def _keep(self, rows: KeyedRows, mark: int, read: Sequence[int] = ()) -> None:
        write_copy(self._copy, self.key, TableCopy(self.identity, rows, mark, list(read)))


class ReplacedFile(FollowedTable):
    """A table in one file, which is replaced as a whole."""

    def __init__(self, section: JoinedSection, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        """Read the file; if that is not possible, go on with the known content, or raise BadInput without any."""
        super().__init__(section, folder, now_s)
        self._path = Path(self._data.path)
        # States of the file: of the content, at the last look, and of one that could not be read.
        self._read = list(self._known.read) if self._known is not None else []
        self._seen, self._bad, self._waits = list[int](), list[int](), 0
        try:
            self._take(self._status())
        except BadInput as error:
            if self._known is None:
                raise
            self.trouble = self._named(error)

    def _look(self) -> str:
        status = self._status()
        if status in (self._read, self._bad):
            return self.trouble if status == self._bad else ""
        if status != self._seen and self._waits < MOST_WAITS:
            # It may be half written: read once it stays as it is, or keeps changing.
            self._seen, self._waits = status, self._waits + 1
            return self.trouble
        self._waits = 0
        self._take(status)
        return ""

    def _status(self) -> list[int]:
        try:
            status = self._path.stat()
        except OSError:
            raise BadInput(f"{self.section}.path: {self._data.path!r} does not exist") from None
        return [status.st_size, status.st_mtime_ns, status.st_ino]

    def _take(self, status: list[int]) -> None:
        if status == self._read:
            return
        try:
            rows = read_rows(self._data, self.key, self.fields, self.section, once=self._once)
        except BadInput:
            self._bad = status
            raise
        if self._status() != status:
            return
        state = self._state.replaced(rows)
        self._keep(state.base, state.mark, status)
        self._state, self._read = state, status


class RecordStream(FollowedTable):
    """A table whose rows arrive in a stream."""

    look_s, of_file = POLL_S, False

    def __init__(
        self,
        section: JoinedSection,
        folder: Path,
        open_stream: Callable[[Schema, ErrorContext], Stream],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the records that have arrived; raise BadInput if that is not possible, or there are none yet."""
        super().__init__(section, folder, now_s)
        context = ErrorContext(f"{self.section}.path", "--new-version --from-scratch starts")
        schema = Schema((self.key, *self.fields), (), self._data.time)
        self._stream = open_stream(schema, context)
        journal, known = folder / JOURNAL, self._known is not None
        self._lost = journal.exists() and not known
        self._journal = StreamJournal(journal, self._stream.identity, not known, context)
        if self._journal.rows < self.mark:
            raise BadInput(f"{self.section}: the trainer's journal of it is incomplete; {context.anew} anew")
        self._source = FollowedSource(self._stream, self._journal, schema, endless=False, now_s=now_s, linger_s=0.0)
        self._row, self._behind = self.mark, False
        self._kept_mark, self._kept_s = self.mark, now_s()
        try:
            self._look()
            while self._behind:
                self._look()
        except BadInput as error:
            raise BadInput(self._named(error)) from None
        if self._state.nothing:
            raise BadInput(f"{self.section}.path: expected records, got a stream without one: send some first")
        if not known:
            self._keep_all()

    def news(self) -> list[str]:
        again = [f"{self.section}: read again from the first record that the stream still has"] * self._lost
        self._lost = False
        return [*again, *super().news(), *(f"{self.section}: {line}" for line in self._source.news())]

    def _look(self) -> str:
        held, row = list[KeyedRows](), self._row
        self._behind = True
        for batch in self._source.batches(READ_ROWS, row):
            held.append(self._rows_of(batch))
            row = batch.end
            if row - self._row >= max(LOOK_ROWS, len(self._state.base) // 4):
                break
        else:
            row, self._behind = self._journal.rows, False
        if held:
            rows = join_rows(held)
            self._state = self._state.added(rows, int(rows.marks[-1]), self._horizon_s)
        self._row = row
        new = self.mark - self._kept_mark
        if new > len(self._state.base) // 4 or (new and self._now_s() - self._kept_s >= KEEP_S):
            self._keep_all()
        return self._source.ingest_status().backlog.trouble

    def _rows_of(self, batch: Batch) -> KeyedRows:
        marks = np.arange(batch.start + 1, batch.end + 1)
        return KeyedRows(self.fields, batch.columns[self.key.name], batch.columns, batch.time, marks)

    def _keep_all(self) -> None:
        """Write the copy, so that the records up to now need not be read again."""
        mark = self.mark
        self._keep(join_rows([self._state.base, self._state.recent]), mark)
        self._kept_mark, self._kept_s = mark, self._now_s()
        self._source.forget(lambda: mark)


def open_table(
    section: JoinedSection,
    folder: Path,
    open_stream: Callable[[str, str, Schema, ErrorContext], Stream],
    anew: bool = False,
) -> FollowedTable:
    """Open a table that is joined to a followed stream. Raises BadInput.

    Args:
        folder: Folder of the run's checkpoints.
        open_stream: Opens a stream of a format, at a path.
        anew: Forget what earlier runs have read of it.
    """
    data, place = section.data, folder / FOLDER / section.section
    if anew:
        shutil.rmtree(place, ignore_errors=True)
    in_folder = data.format == "parquet" and Path(data.path).is_dir()
    if data.format in STREAMS or in_folder:
        return RecordStream(
            section, place, lambda schema, context: open_stream(data.format, data.path, schema, context)
        )
    if "://" in data.path or glob.has_magic(data.path) or Path(data.path).is_dir():
        raise BadInput(
            f"{section.section}.path: expected, beside a followed stream, a file, a folder of Parquet files, Redis or"
            f" Kafka, got {data.shown[:120]!r}"
        )
    return ReplacedFile(section, place)


def followed_tables(source: Source) -> list[FollowedTable]:
    """Return the tables that are followed and joined to the rows of a source."""
    joined = layer_of(source, EntitySource)
    return [table for table in joined.tables if isinstance(table, FollowedTable)] if joined is not None else []
