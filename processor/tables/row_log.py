"""Store rows of a table with a memory budget in a log on disk: records in segments of a file without a name.

Serving's tables (processor.tables.tier) read it through its mapping, training's (models.embedding.cold_rows) by system
calls. Belongs to the table's writer. Records are only ever appended to the newest segment. A segment without live
records is freed: once every reader has reached a later flip its disk space is released and it may be used again.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.memory import advise
from freshet_serving.processor.package import STORED_TYPES, TableEntry
from freshet_serving.processor.tables.scratch_file import ScratchFile

# Records are whole multiples of 8 bytes, so segments are whole pages.
SEGMENT_RECORDS = 1 << 14
MOST_RECORDS = 1 << 27

Int64s = NDArray[np.int64]


def record_nbytes(spec: TableEntry) -> int:
    """Return the size of one record of the table's log."""
    row_nbytes = spec.dim * STORED_TYPES[spec.dtype].dtype.itemsize
    return row_kernels.LOG_ROW + -(-row_nbytes // 8) * 8


def tier_fields(spec: TableEntry, arrays: Mapping[str, NDArray[Any]]) -> list[int]:
    """Return the last fields of the descriptor of a table with a memory budget: log, record_nbytes, hits, ring."""
    return [
        arrays["log"].ctypes.data,
        record_nbytes(spec),
        arrays["hits"].ctypes.data,
        arrays["ring"].ctypes.data,
    ]


class RowLog:
    """The log's segments: where the next records go, how many of each segment are live, which are free."""

    def __init__(self, table: str, record_nbytes: int, folder: Path) -> None:
        """Create the log file; record_nbytes is a multiple of 8. Raises BadInput if the folder is not writable."""
        try:
            self.file = ScratchFile(folder, MOST_RECORDS * record_nbytes)
        except OSError as error:
            raise BadInput(f"table {table!r}: scratch folder is not writable: {error.strerror}") from None
        advise(self.file.array, mmap.MADV_RANDOM)
        self._segment_nbytes = SEGMENT_RECORDS * record_nbytes
        self._live = np.zeros(MOST_RECORDS // SEGMENT_RECORDS, np.int64)
        self._closed = np.zeros(len(self._live), np.bool_)
        self._free: list[int] = []
        self._deferred: deque[tuple[int, int]] = deque()
        self._opened = 0
        self._tail, self._fill = -1, SEGMENT_RECORDS

    @property
    def nbytes(self) -> int:
        return (self._opened - len(self._free)) * self._segment_nbytes

    def place(self, count: int) -> tuple[int, int]:
        """Return the first record number and how many of `count` records fit there; raise OSError on a full disk."""
        if self._fill == SEGMENT_RECORDS:
            self._open()
        return self._tail * SEGMENT_RECORDS + self._fill, min(count, SEGMENT_RECORDS - self._fill)

    def commit(self, count: int) -> None:
        """Mark `count` records at place() as written and live."""
        self._fill += count
        self._live[self._tail] += count

    def count(self, records: Int64s) -> Int64s:
        """Count records by segment, for drop_records(): int64 [segments], or [0] for no records."""
        if not len(records):
            return np.empty(0, np.int64)
        return np.bincount(records // SEGMENT_RECORDS, minlength=len(self._live))

    def drop_records(self, counted: Int64s) -> None:
        """Drop records that nothing refers to any more, as counted by count()."""
        if len(counted):
            self._live -= counted

    def drop_moved(self, segment: int, records: int) -> None:
        """Drop `records` records of one segment."""
        self._live[segment] -= records

    def emptiest(self) -> int:
        """Return the closed segment with the fewest live records if at most half are live; -1 if there is none."""
        if not self._opened:
            return -1
        live = np.where(self._closed[: self._opened], self._live[: self._opened], SEGMENT_RECORDS)
        segment = int(live.argmin())
        return segment if live[segment] * 2 <= SEGMENT_RECORDS else -1

    def live_in(self, segment: int) -> int:
        return int(self._live[segment])

    @property
    def waiting(self) -> bool:
        """True if a freed segment waits for a flip."""
        return bool(self._deferred)

    def free_segment(self, segment: int, safe_seq: int) -> None:
        """Free a segment without live records; it may be reused once every reader has reached the flip `safe_seq`."""
        self._closed[segment] = False
        self._deferred.append((safe_seq, segment))

    def reclaim(self, oldest_seq: int) -> None:
        while self._deferred and self._deferred[0][0] <= oldest_seq:
            segment = self._deferred[0][1]
            self.file.punch_hole(segment * self._segment_nbytes, self._segment_nbytes)
            self._free.append(segment)
            self._deferred.popleft()

    def _open(self) -> None:
        fresh = not self._free
        segment = self._opened if fresh else self._free[-1]
        if segment == len(self._live):
            raise OSError("the log is full")
        self.file.take(segment * self._segment_nbytes, self._segment_nbytes)
        if fresh:
            self._opened += 1
        else:
            self._free.pop()
        if self._tail >= 0:
            self._closed[self._tail] = True
        self._tail, self._fill = segment, 0
