"""Codes of a table's rows, one byte a number, which readers of all processes scan in place of the rows.

Positions. Each key has a position for good: those of the table's file are its rows' numbers, those of deltas come after
them in the order in which they were met. A position has a code for each number of its row, a scale (code_scan), and a
bit: `stale`.

One writer, the holder of the version's lock, makes and changes all of it; readers map it and have pinned an epoch.

Invariants
- A position whose bit is clear has the codes of its key's row in every epoch that a reader may have pinned; or DEAD, if
  the key has no row in any of them.
- The bit is set before a state in which the row differs is published (changing), which is the flip of a delta and of a
  rollback alike. A set bit only costs time: readers take the row itself, as of their epoch.
- Codes are written, and then the bit is cleared, only while no reader is pinned to a state older than the served one
  (refresh, under the lock). A reader that pinned the served state and found the bit set does not read them; one that
  finds it clear finds them whole, and they stay as they are until it is gone.
- The number of positions is raised after the new ones have their keys and their bits, and before a state in which they
  have rows is published.
- Nothing here is needed for an answer to be right: a position that stays stale is slow, and no delta is refused.

Costs. A byte a number and 4 bytes a row, once for all processes, beside 4 bytes a number of float32 rows: 0.27 of rows
of 50 numbers. A delta of m rows costs m probes of the file's index before the flip, and m rows to be encoded after it,
in slices of SLICE rows under the lock. Positions of keys that were removed are kept.

Rejected: a copy of the rows (four times the memory, and scanned four times as slowly); codes as of each epoch, beside
the row versions (a scan would walk rows in the arena's order, and visible() for each); a list of changes since the
codes were made, to be merged by readers (bounded only by what nobody reads, and each reader pays for it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.code_scan import WORD
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.memory import reserve
from freshet_serving.processor.tables.table import ServedTable

MORE_POSITIONS = 1 << 26
"""Positions that are reserved beyond those of the file; memory is taken as they are used."""
SLICE = 1 << 14
"""Rows that refresh() encodes at a time: a few milliseconds."""

Int64s = NDArray[np.int64]


class RowCodes:
    """The codes of one served table. All methods are for the version's writer, under its lock.

    Attributes:
        arrays: What readers map: code_keys (the file's keys), code_more_keys, code_bytes, code_scales, code_stale, and
            code_count, int64 [2], the numbers of positions and of codes of each. Other arrays once there is no room for
            new keys.
    """

    def __init__(
        self, table: ServedTable, tensors: Mapping[str, NDArray[Any]], columns: int, more: int = MORE_POSITIONS
    ) -> None:
        """Take positions for the rows of the table's file, all stale; products read the leading `columns` of a row."""
        self._table, self._columns = table, columns
        self._file_index: Int64s = tensors["index"]
        self._more_index = hash_index.empty_index(hash_index.capacity_for(0))
        self.arrays = self._reserved(tensors["keys"], np.empty(0, np.int64), more)
        # The first word that may have a stale position.
        self._next = 0

    def _reserved(self, keys: Int64s, further: Int64s, more: int) -> dict[str, NDArray[Any]]:
        """Return arrays with a stale position for each key, and room for `more` after the file's."""
        name, count, most = self._table.spec.name, len(keys) + len(further), len(keys) + more
        nbytes, words = most * self._columns + 2 * code_scan.LANES, -(-most // WORD)
        arrays: dict[str, NDArray[Any]] = {
            "code_keys": keys,
            "code_more_keys": reserve(8 * more, f"code-keys-{name}").view(np.int64)[:more],
            "code_bytes": reserve(nbytes, f"codes-{name}").view(np.int8)[:nbytes],
            "code_scales": reserve(4 * most, f"code-scales-{name}").view(np.float32)[:most],
            "code_stale": reserve(8 * words, f"code-stale-{name}").view(np.int64)[:words],
            "code_count": reserve(16, f"code-count-{name}").view(np.int64)[:2],
        }
        arrays["code_more_keys"][: len(further)] = further
        arrays["code_stale"][: count // WORD] = -1
        if count % WORD:
            arrays["code_stale"][count // WORD] = (1 << count % WORD) - 1
        arrays["code_count"][:] = count, self._columns
        return arrays

    @property
    def nbytes(self) -> int:
        count = self.count
        further = count - self._table.spec.rows
        return count * (self._columns + 4) + count // 8 + 8 * further + self._more_index.nbytes

    @property
    def stale(self) -> bool:
        return self._next < self._words

    @property
    def count(self) -> int:
        """Positions that have a key."""
        return int(self.arrays["code_count"][0])

    @property
    def _words(self) -> int:
        return -(-self.count // WORD)

    def changing(self, keys: Sequence[Int64s]) -> None:
        """Mark keys, int64 [n] each, whose rows will be other ones in the state that is published next."""
        for some_keys in keys:
            if len(some_keys):
                positions = self._positions(np.ascontiguousarray(some_keys))
                code_scan.mark(self.arrays["code_stale"], positions)
                self._next = min(self._next, int(positions.min()) // WORD)
                # New positions exist for readers once they have keys and bits.
                self.arrays["code_count"][0] = max(self.count, int(positions.max()) + 1)

    def refresh(self, epoch: int) -> bool:
        """Encode some stale rows, as of the served epoch; return True if more are left.

        The caller holds the lock, and no reader is pinned to a state older than the served one.
        """
        if self._next < self._words:
            self._next = code_scan.refresh_codes(
                np.array(self._table.descriptor()), epoch, self._next, self._words, SLICE, self._columns,
                *(self.arrays[f"code_{name}"] for name in ("keys", "more_keys", "bytes", "scales", "stale")),
            )  # fmt: skip
        return self.stale

    def find(self, keys: Int64s) -> Int64s:
        """Return the position of each key, int64 [n]; below 0 for keys without one."""
        positions, rows = self._of_file(keys), self._table.spec.rows
        others = np.flatnonzero(positions < 0)
        if len(others):
            numbers = np.empty(len(others), np.int64)
            hash_index.find(self._more_index.ctypes.data, len(self._more_index), keys[others], numbers)
            positions[others] = np.where(numbers < 0, -1, rows + numbers)
        return positions

    def _positions(self, keys: Int64s) -> Int64s:
        """Return the position of each key, int64 [n]; new keys get one."""
        positions = self._of_file(keys)
        others = np.flatnonzero(positions < 0)
        if len(others):
            positions[others] = self._table.spec.rows + self._further(keys[others])
        return positions

    def _of_file(self, keys: Int64s) -> Int64s:
        """Return the position of each key, int64 [n]; -1 for keys that the file does not have."""
        rows = self._table.spec.rows
        positions = np.empty(len(keys), np.int64)
        hash_index.find(self._file_index.ctypes.data, len(self._file_index), keys, positions)
        # The file was verified when it was loaded, and is only mapped.
        inside = (positions >= 0) & (positions < rows)
        inside[inside] = self.arrays["code_keys"][positions[inside]] == keys[inside]
        positions[~inside] = -1
        return positions

    def _further(self, keys: Int64s) -> Int64s:
        """Return the numbers of keys that the file does not have, in the order in which they were met."""
        numbers, index, count = np.empty(len(keys), np.int64), self._more_index, self.count - self._table.spec.rows
        hash_index.find(index.ctypes.data, len(index), keys, numbers)
        new = np.unique(keys[numbers < 0])
        if len(new):
            more_keys = self.arrays["code_more_keys"]
            if count + len(new) > len(more_keys):
                # Readers of older states keep the arrays that they have, which nobody writes any more.
                self.arrays = self._reserved(self.arrays["code_keys"], more_keys[:count], 2 * (count + len(new)))
                self._next, more_keys = 0, self.arrays["code_more_keys"]
            if (count + len(new)) * 8 > len(index) * 7:
                self._more_index = index = hash_index.empty_index(hash_index.capacity_for(2 * (count + len(new))))
                hash_index.build(index.ctypes.data, len(index), more_keys[:count])
            more_keys[count : count + len(new)] = new
            entries = np.empty(len(new), np.int64)
            hash_index.claim(index.ctypes.data, len(index), new, entries)
            index[entries, 1] = np.arange(count, count + len(new))
            hash_index.find(index.ctypes.data, len(index), keys, numbers)
        return numbers
