"""Keep rows of a table in training on disk, as records of a log (processor.tables.row_log), with metadata in memory.

A record is a key, the row in the place where serving's kernels expect it, and the optimizer's slots. Key, books (last
step and count) and the changed flag are in memory by record number: 26 bytes, beside the index entry.

Invariants
- A record is written once. A row that moves gets a new record, and the old one is dropped.
- A record's bytes stay in place until its segment is freed. Only compact() frees segments, so its thread may read
  records, also dropped ones, without a lock.
- After compact() at most half of every closed segment is dead, so the log is at most twice the live records, plus a
  segment.
- Nothing survives a crash: the log is an unnamed file, and a run resumes from its checkpoints.

Cost: a read of many records is a scan of the log: it goes in its order, and reads gaps between close records, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.id_rows import longer
from freshet_serving.processor.kernels.rows import LOG_KEY, LOG_ROW
from freshet_serving.processor.tables.row_log import SEGMENT_RECORDS, RowLog

NEAR_NBYTES = 32 << 10
"""Smaller gaps between two records are read: a disk reads about that much in the time to start a read."""
READ_NBYTES = 4 << 20
MOVED_RECORDS = 1024

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Move = Callable[[Int64s, Int64s], None]


class ColdRows:
    """Records of one table. append, drop and reads of records that compact() may move must not run concurrently."""

    def __init__(self, table: str, dim: int, slots: int, folder: Path) -> None:
        """Create the log of rows float32 [dim] with float32 [slots]; raise BadInput if the folder is not writable."""
        places = {
            "key": ("<i8", LOG_KEY),
            "row": (("<f4", (dim,)), LOG_ROW),
            "slots": (("<f4", (slots,)), LOG_ROW + 4 * dim),
        }
        self._kind = np.dtype(
            {
                "names": list(places),
                "formats": [kind for kind, _ in places.values()],
                "offsets": [offset for _, offset in places.values()],
                "itemsize": LOG_ROW + -(-4 * (dim + slots) // 8) * 8,
            }
        )
        self._log = RowLog(table, self._kind.itemsize, folder)
        self._rows = 0
        self.keys = np.zeros(SEGMENT_RECORDS, np.int64)
        self.books = np.zeros((SEGMENT_RECORDS, 2), np.int64)
        self.marks = np.zeros(SEGMENT_RECORDS, np.bool_)
        self._lives = np.zeros(SEGMENT_RECORDS, np.bool_)
        self.compactions = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def record_nbytes(self) -> int:
        return self._kind.itemsize

    @property
    def log_nbytes(self) -> int:
        return self._log.nbytes

    @property
    def log(self) -> NDArray[np.uint8]:
        """All records, memory-mapped, as serving's kernels read them."""
        return self._log.file.array

    def append(self, keys: Int64s, rows: Float32s, slots: Float32s, books: Int64s, marks: NDArray[np.bool_]) -> Int64s:
        """Write n rows, with books int64 [n, 2] (last step and count) and the flags of changed ones.

        Return their record numbers, fewer than n if the disk is full.
        """
        written = np.empty((len(keys), self._kind.itemsize), np.uint8)
        parts = written.view(self._kind).reshape(-1)
        parts["key"], parts["row"], parts["slots"] = keys, rows, slots
        records, done = np.empty(len(keys), np.int64), 0
        while done < len(keys):
            try:
                first, count = self._log.place(len(keys) - done)
                self._log.file.write(first * self._kind.itemsize, written[done : done + count])
            except OSError:
                break
            self._log.commit(count)
            records[done : done + count] = np.arange(first, first + count)
            done += count
        records = records[:done]
        if done:
            self._make_room(int(records.max()) + 1)
        self.keys[records], self.books[records] = keys[:done], books[:done]
        self.marks[records], self._lives[records] = marks[:done], True
        self._rows += done
        return records

    def read(self, records: Int64s) -> tuple[Float32s, Float32s]:
        """Return rows [n, dim] and slots [n, slots] of records in their order, reading in the order of the log."""
        order = np.argsort(records)
        ascending, nbytes = records[order], self._kind.itemsize
        read = np.empty((len(records), nbytes), np.uint8)
        parted = np.flatnonzero(np.diff(ascending) * nbytes > NEAR_NBYTES) + 1
        for first, stop in zip([0, *parted.tolist()], [*parted.tolist(), len(ascending)]):
            while first < stop:
                begin = int(ascending[first])
                last = int(np.searchsorted(ascending[first:stop], begin + max(1, READ_NBYTES // nbytes))) + first
                piece = np.empty((int(ascending[last - 1]) + 1 - begin, nbytes), np.uint8)
                self._log.file.read(begin * nbytes, piece)
                read[first:last] = piece[ascending[first:last] - begin]
                first = last
        parts, back = read.view(self._kind).reshape(-1), np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return parts["row"][back], parts["slots"][back]

    def drop(self, records: Int64s) -> None:
        self._lives[records] = self.marks[records] = False
        self._rows -= len(records)
        self._log.drop_records(self._log.count(records))

    def present(self) -> Int64s:
        """Return all live records in the order of the log."""
        return np.flatnonzero(self._lives)

    def changed(self) -> Int64s:
        """Return the records that count as changed."""
        return np.flatnonzero(self.marks)

    def compact(self, lock: AbstractContextManager[Any], move: Move) -> None:
        """Rewrite the live records of segments that are half dead, and free the segments.

        `move` is called with old and new record numbers under the lock, which other threads may take between calls.
        """
        while True:
            with lock:
                segment = self._log.emptiest()
            if segment < 0:
                return
            first = segment * SEGMENT_RECORDS
            for at in range(first, first + SEGMENT_RECORDS, MOVED_RECORDS):
                records = at + np.flatnonzero(self._lives[at : at + MOVED_RECORDS])
                rows, slots = self.read(records)
                with lock:
                    alive = self._lives[records]
                    records, rows, slots = records[alive], rows[alive], slots[alive]
                    keys, books, marks = self.keys[records], self.books[records], self.marks[records]
                    to = self.append(keys, rows, slots, books, marks)
                    if len(to) < len(records):
                        self.drop(to)
                        return
                    move(records, to)
                    self.drop(records)
            with lock:
                self._log.free_segment(segment, 0)
                self._log.reclaim(0)
                self.compactions += 1

    def _make_room(self, records: int) -> None:
        size = len(self.keys)
        if records > size:
            while size < records:
                size *= 2
            self.keys, self.books = longer(self.keys, size), longer(self.books, size)
            self.marks, self._lives = longer(self.marks, size), longer(self._lives, size)
