"""Store rows by id in two tiers: a working set in memory within a budget, the other rows on disk.

A row number below LOGGED is a row in memory; from LOGGED on it is LOGGED + the record's number in the log
(models.embedding.cold_rows), as serving's kernels understand it (processor.kernels.rows). So readers through the index,
such as pooling, read rows on disk in place; writers fetch rows first. A fetched row leaves the log, a demoted row is
written to it.

Prefetch windows (models.training.prefetch_windows), the ids of many batches, make this cheap. A window's rows on disk
are read in the order of the log while the previous window is trained on (prefetch). When it begins, enough rows leave
memory, none of them its own, and the prefetched ones enter (enter_window). So only the difference between windows
moves, and nothing within a window waits for a disk.

Invariants
- The row of an id is in exactly one place. The same operations give the same rows, to the bit, for any budget.
- Two threads: the trainer's, with its workers, and one that prefetches and compacts. Code that moves index entries,
  frees what they refer to, or keeps numbers of rows on disk holds the lock. The second thread moves only entries of
  rows on disk, so rows in memory are found and trained without the lock.
- A prefetched row is used only if the id's row is still that record of the same log; otherwise it is read again.
- Memory exceeds the budget only when a single batch needs more rows, or while the disk is full.

Rejected: a copy on disk of each row in memory (training writes to nearly every row that it fetches); pages on disk (the
rows of a page are unrelated); fetching rows when a batch needs them (a tenth of the ids of 4,096 rows are 3,000 small
reads, which take longer than the batch on an SSD of 16,000 reads a second, and ten times as long as a scan for forty
batches).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.embedding.cold_rows import ColdRows
from freshet_serving.models.embedding.id_rows import Column, IdRows
from freshet_serving.models.embedding.row_budget import RowBudget
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.rows import LOGGED
from freshet_serving.processor.tables.scratch_file import ScratchFile

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

HOT_SHARE, STRETCH_SHARE = 0.6, 2 / 3
"""Share of a budget for rows in memory, and the share of these for a window: the rest holds the next window's rows."""
FOUND_IDS = 1 << 13
"""Ids that the prefetching thread looks up at once under the lock of the index."""
MOVED_ROWS = 1 << 14
NO_ROOM = "the disk is full, so its rows stay in memory and exceed the budget"
MAPPED_NBYTES = 16 << 20
"""From this size on a copy of a column is backed by a file."""
LEAST_ROWS = 1024

LOG = logging.getLogger("freshet")

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class PrefetchedRows:
    """Rows that were read ahead from a log; record numbers are int64 [m], ascending."""

    log: ColdRows
    records: Int64s
    rows: Float32s
    slots: Float32s


class TieredRows(IdRows):
    """IdRows with columns rows, slots and books within a budget of `most` rows in memory.

    `lock` is held while rows on disk are read by number or through the index, so that none moves.
    """

    def __init__(self, table: str, columns: Mapping[str, Column], budget: RowBudget) -> None:
        """Create an empty table; raise BadInput if the scratch folder is not writable."""
        self.lock = threading.RLock()
        self._table, self._budget = table, budget
        dim, slots = (columns[name][0][0] for name in ("rows", "slots"))
        self._widths, self._full = (dim, slots), False
        row_nbytes = 4 * (dim + slots) + 16 + 8 + 1 + 4
        self.most = max(LEAST_ROWS, int(budget.nbytes // row_nbytes * HOT_SHARE))
        super().__init__({**columns, "wanted": ((), np.int32)})

    def clear(self) -> None:
        with self.lock:
            super().clear()
            self.cold, self._window = ColdRows(self._table, *self._widths, self._budget.scratch), 1

    def __len__(self) -> int:
        return self.hot + len(self.cold)

    @property
    def hot(self) -> int:
        return self._bump - len(self._free)

    @property
    def window_ids(self) -> int:
        """Most ids of a prefetch window: its rows must fit in memory beside those read ahead for the next one."""
        return int(self.most * STRETCH_SHARE)

    def put(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        with self.lock:
            return super().put(ids)

    def remove(self, ids: Int64s) -> int:
        with self.lock:
            refs = self.find(ids)
            records = np.unique(refs[refs >= LOGGED]) - LOGGED
            keys = self.cold.keys[records]
            count = super().remove(ids[refs < LOGGED])
            self._unlink(keys)
            self.cold.drop(records)
            return count + len(records)

    def fetch(self, ids: Int64s) -> Int64s:
        refs = self.find(ids)
        if (refs >= LOGGED).any():
            with self.lock:
                refs = self.find(ids)
                records = np.unique(refs[refs >= LOGGED]) - LOGGED
                self._promote(records, *self.cold.read(records))
                refs = self.find(ids)
        return refs

    def gather(self, refs: Int64s, *names: str) -> list[NDArray[Any]]:
        on_disk = refs >= LOGGED
        columns = super().gather(np.where(on_disk, 0, refs), *names)
        if on_disk.any():
            with self.lock:
                records = refs[on_disk] - LOGGED
                parts: dict[str, NDArray[Any]] = {"keys": self.cold.keys[records], "books": self.cold.books[records]}
                if not parts.keys() >= set(names):
                    parts["rows"], parts["slots"] = self.cold.read(records)
                for name, column in zip(names, columns):
                    column[on_disk] = parts[name]
        return columns

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if nbytes < MAPPED_NBYTES:
            return super().empty(shape, dtype)
        try:
            file = ScratchFile(self._budget.scratch, nbytes)
            file.take(0, nbytes)
        except OSError as error:
            problem = f"cannot write {nbytes >> 20:,} MiB of scratch for a copy of its rows: {error.strerror}"
            raise BadInput(f"table {self._table!r}: {problem}") from None
        column: NDArray[Any] = file.array.view(np.dtype(dtype)).reshape(shape)
        return column

    def touch(self, refs: Int64s) -> None:
        self.marks[refs[refs < LOGGED]] = True
        self.cold.marks[refs[refs >= LOGGED] - LOGGED] = True

    def present(self) -> Int64s:
        return np.concatenate([super().present(), LOGGED + self.cold.present()])

    def changed(self) -> Int64s:
        return self._by_id(np.concatenate([np.flatnonzero(self.marks[: self._bump]), LOGGED + self.cold.changed()]))

    def clear_changed(self) -> None:
        with self.lock:
            super().clear_changed()
            self.cold.marks[:] = False

    def mark(self, keys: Int64s, removed: Int64s) -> None:
        with self.lock:
            super().mark(keys, removed)

    def shrink_to_budget(self) -> None:
        if self.hot > self.most:
            with self.lock:
                self._make_room(self.hot - self.most)

    # Prefetch windows.

    def compact_log(self) -> None:
        """Compact the log, on the prefetching thread before it prefetches."""

        def move(records: Int64s, to: Int64s) -> None:
            self._point(self.cold.keys[records], LOGGED + to)

        self.cold.compact(self.lock, move)

    def prefetch(self, ids: Int64s) -> PrefetchedRows:
        """Read the rows on disk of distinct ids, concurrently with the trainer's thread."""
        log, record_parts = self.cold, [np.empty(0, np.int64)]
        for first in range(0, len(ids), FOUND_IDS):
            with self.lock:
                refs = self.find(ids[first : first + FOUND_IDS])
            record_parts.append(refs[refs >= LOGGED] - LOGGED)
        records = np.sort(np.concatenate(record_parts))
        return PrefetchedRows(log, records, *log.read(records))

    def enter_window(self, ids: Int64s, prefetched: PrefetchedRows) -> None:
        """Begin a window: make room, and bring the rows of its distinct ids into memory."""
        with self.lock:
            refs = self.find(ids)
            self._window += 1
            self.columns["wanted"][refs[(refs >= 0) & (refs < LOGGED)]] = self._window
            records = refs[refs >= LOGGED] - LOGGED
            excess = self.hot + len(records) + np.count_nonzero(refs < 0) - self.most
            if excess > 0:
                self._make_room(int(excess))
            ready = np.zeros(len(records), np.bool_)
            if len(prefetched.records) and prefetched.log is self.cold:
                at = np.minimum(np.searchsorted(prefetched.records, records), len(prefetched.records) - 1)
                ready = prefetched.records[at] == records
                self._promote(records[ready], prefetched.rows[at[ready]], prefetched.slots[at[ready]], self._window)
            late = records[~ready]
            self._promote(late, *self.cold.read(late), self._window)

    # Moving rows between the tiers.

    def _promote(self, records: Int64s, rows: Float32s, slots: Float32s, wanted_by: int = 0) -> None:
        keys, refs = self.cold.keys[records], self._next_numbers(len(records))
        self._take(len(records))
        self.keys[refs], self.columns["rows"][refs], self.columns["slots"][refs] = keys, rows, slots
        self.columns["books"][refs], self.columns["wanted"][refs] = self.cold.books[records], wanted_by
        self.marks[refs] = self.cold.marks[records]
        self._point(keys, refs)
        self.cold.drop(records)

    def _make_room(self, count: int) -> None:
        """Move the coldest rows to disk, except those that the current window needs."""
        refs = np.sort(self._coldest(count))
        for first in range(0, len(refs), MOVED_ROWS):
            piece = refs[first : first + MOVED_ROWS]
            keys, rows, slots, books = self.gather(piece, "keys", "rows", "slots", "books")
            records = self.cold.append(keys, rows, slots, books, self.marks[piece])
            if self._full != (len(records) < len(piece)):
                self._full = not self._full
                LOG.warning("table %r: %s", self._table, NO_ROOM if self._full else "the disk has free space again")
            piece = piece[: len(records)]
            self._point(keys[: len(records)], LOGGED + records)
            self.marks[piece] = False
            self._free.extend(piece.tolist())

    def _coldest(self, rows: int) -> Int64s:
        books = self.columns["books"][: self._bump]
        # Least often read first, ties by oldest read.
        heat = np.minimum(books[:, 1], 1 << 30) << 32 | (books[:, 0] & 0xFFFFFFFF)
        heat[self._free] = _NEVER
        heat[self.columns["wanted"][: self._bump] == self._window] = _NEVER
        rows = min(rows, int(np.count_nonzero(heat < _NEVER)))
        return np.argpartition(heat, rows - 1)[:rows] if rows else np.empty(0, np.int64)

    def _size_for(self, rows: int) -> int:
        return min(super()._size_for(rows), max(self.most, rows + rows // 8))
