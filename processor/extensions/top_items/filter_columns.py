"""The columns that filters read, by the positions of a table's codes (row_codes), which readers of all processes map.

A position has a value of each column of its item's record, and a bit: `fresh`. Numbers are as records hold them; texts
are codes (text_codes); of a list there is a word, its place among all lists' values and its length. The holder of the
version's lock makes and changes all of it; readers map it and have pinned an epoch.

Invariants
- A position whose bit is set has the columns of its item's record in every epoch that a reader may have pinned; or
  missing values and `there` 0, if the item has no record in any of them.
- The bit is cleared before a state in which the record differs is published (changing), by a delta or a rollback.
  Without the bit readers take the record itself, as of their epoch (item_filters): slow, never wrong.
- Columns are written, and then the bit is set, only while no reader is pinned to a state older than the served one
  (refresh). A reader that has pinned the served state, and read the bits before, does not read what is written.
- Memory is zeros at first: a new position has no bit.
- A position whose texts cannot have codes (text_codes.COLLIDES), or for whose values there is no room, gets no bit.

Costs. 4 bytes a float or text, 8 a whole number, 8 a list and 8 a value of it, and one byte and a bit, a position; each
text once, with 30 to 100 bytes. Once unused texts and lists are most of the memory, all is made anew. A delta of m
records costs m probes of the table's indexes before the flip, and m records to be read after it, in slices of SLICE.

Rejected: filters on the records in place (a probe and a cache miss an item: ten times the scan); bitmaps by value (a
range of prices is thousands of them, and a delta changes each); hashes in place of codes (8 bytes, and not exact);
columns by the records' own positions (a scan would probe an index for each item).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import FreshetError
from freshet_serving.processor.extensions.top_items import record_reads
from freshet_serving.processor.extensions.top_items.code_scan import WORD
from freshet_serving.processor.extensions.top_items.item_filters import FilteredEntity, keys_at
from freshet_serving.processor.extensions.top_items.record_reads import LENGTH_BITS
from freshet_serving.processor.extensions.top_items.row_codes import RowCodes
from freshet_serving.processor.extensions.top_items.text_codes import COLLIDES, MISSING, TextCodes
from freshet_serving.processor.memory import reserve
from freshet_serving.processor.package import Input
from freshet_serving.processor.tables.table import ServedTable

SLICE = 1 << 13
"""Positions that refresh() fills at a time: a few milliseconds."""
MAX_LISTED = 1 << 30
"""Values of all lists for which there is room; memory is taken as it is used."""
CROWDED = 1 << 20
"""Texts and values of lists, beyond four times those that can be in use, from which on all is made anew."""

Int64s = NDArray[np.int64]


class FilterColumns:
    """The columns of one entity beside a table's codes. All methods are for the version's writer, under its lock.

    Attributes:
        arrays: What readers map: filter_fresh (words of bits), filter_there, FilteredEntity.array_of() each column,
            filter_lists, and those of text_codes. Other arrays once there is no room for new positions.
    """

    def __init__(self, codes: RowCodes, table: ServedTable, source: FilteredEntity) -> None:
        self._codes, self._table, self._source = codes, table, source
        self._names = {name: source.array_of(name) for name in source.columns}
        self._begin()

    def _begin(self) -> None:
        name, most = self._table.spec.name, len(self._codes.arrays["code_scales"])
        specs, words = self._source.columns.values(), -(-most // WORD)
        self.arrays: dict[str, NDArray[Any]] = {
            "filter_fresh": reserve(8 * words, f"filter-fresh-{name}").view(np.int64)[:words],
            "filter_there": reserve(most, f"filter-there-{name}")[:most],
        }
        for spec in specs:
            kind = _array_type(spec)
            memory = reserve(most * kind.itemsize, f"filter-{spec.name[:64]}")
            self.arrays[self._names[spec.name]] = memory[: most * kind.itemsize].view(kind)
        if any(spec.ragged for spec in specs):
            self.arrays["filter_lists"] = reserve(8 * MAX_LISTED, f"filter-lists-{name}").view(np.int64)
        self._texts = TextCodes.reserved(name) if any(spec.dtype == "string" for spec in specs) else None
        if self._texts is not None:
            self.arrays |= self._texts.arrays
        # The first word with a position that may not hold, and the positions that were there when it was found; the end
        # of the lists' values, and how many are not used.
        self._next = self._count = self._listed = self._unused = 0

    @property
    def nbytes(self) -> int:
        count = self._codes.count
        row = 1 + sum(_array_type(spec).itemsize for spec in self._source.columns.values())
        return count * row + count // 8 + 8 * self._listed + (self._texts.nbytes if self._texts is not None else 0)

    @property
    def _words(self) -> int:
        return -(-self._codes.count // WORD)

    def changing(self, keys: Sequence[Int64s]) -> None:
        """Mark items whose records will be other ones in the state that is published next; after RowCodes.changing().

        Keys, each array int64 [n], are those of records that are added, replaced or removed.
        """
        if len(self._codes.arrays["code_scales"]) != len(self.arrays["filter_there"]) or self._crowded():
            # Readers of older states keep the arrays that they have, which nobody writes any more.
            self._begin()
        # New positions may be in a word that is filled.
        self._next, self._count = min(self._next, self._count // WORD), self._codes.count
        for some_keys in keys:
            positions = self._codes.find(np.ascontiguousarray(some_keys))
            positions = positions[positions >= 0]
            if len(positions):
                record_reads.write_bits(self.arrays["filter_fresh"], positions, False)
                self._next = min(self._next, int(positions.min()) // WORD)

    def _crowded(self) -> bool:
        specs, count = self._source.columns.values(), self._codes.count
        texts = 0 if self._texts is None else len(self._texts)
        most = 4 * count * sum(spec.dtype == "string" for spec in specs) + CROWDED
        return texts > most + 4 * self._listed or self._unused > self._listed - self._unused + CROWDED

    def refresh(self, epoch: int) -> bool:
        """Fill some positions that do not hold, as of the served epoch; return True if more are left.

        The caller holds the lock, and no reader is pinned to a state older than the served one.
        """
        words, fresh = self._words, self.arrays["filter_fresh"]
        left = np.flatnonzero(fresh[self._next : words] != -1)
        if not len(left):
            self._next = words
            return False
        first = self._next + int(left[0])
        last = min(words, first + SLICE // WORD)
        holds = np.unpackbits(fresh[first:last].view(np.uint8), bitorder="little")
        positions = WORD * first + np.flatnonzero(holds == 0)
        positions = positions[positions < self._codes.count]
        if len(positions):
            self._fill(epoch, positions)
        # Positions that cannot hold are tried again when their records change.
        self._next = last
        return last < words

    def _fill(self, epoch: int, positions: Int64s) -> None:
        keys = keys_at(self._codes.arrays, positions)
        records, present = self._source.read(np.array(self._table.descriptor(), np.int64), epoch, keys)
        try:
            columns = self._source.unpack(np.ascontiguousarray(records[present]), list(self._source.columns))
        except FreshetError:
            # Requests that read such records say so.
            return
        self.arrays["filter_there"][positions] = present
        holds = np.ones(len(positions), np.bool_)
        for spec in self._source.columns.values():
            array, column = self.arrays[self._names[spec.name]], columns[spec.name]
            values, good = self._values(column, array[positions[present]])
            row = np.full(len(positions), _missing(spec), array.dtype)
            row[present] = values
            array[positions] = row
            holds[present] &= good
        record_reads.write_bits(self.arrays["filter_fresh"], positions[holds], True)

    def _values(self, column: Column, before: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return what a column has for each record, and for which it can; `before` is what it has now."""
        if isinstance(column, Ragged):
            lengths, values = np.diff(column.row_splits), column.values
            good = lengths < 1 << LENGTH_BITS
            if isinstance(values, Strings):
                values = self._coded(values)
                good[np.repeat(np.arange(len(lengths)), lengths)[values == COLLIDES]] = False
            return self._placed(lengths, values, before), good
        if isinstance(column, Strings):
            codes = self._coded(column)
            return codes, codes != COLLIDES
        return column, np.ones(len(column), np.bool_)

    def _placed(self, lengths: Int64s, values: NDArray[Any], before: Int64s) -> Int64s:
        """Write lists, each to its place if it fits there, and return their words."""
        room = before & ((1 << LENGTH_BITS) - 1)
        moved = lengths > room
        starts = before >> LENGTH_BITS
        ends = self._listed + np.cumsum(np.where(moved, lengths, 0))
        starts[moved] = (ends - lengths)[moved]
        self._unused += int(np.where(moved, room, room - lengths).sum())
        self._listed = int(ends[-1]) if len(ends) else self._listed
        row = np.repeat(np.arange(len(lengths)), lengths)
        self.arrays["filter_lists"][starts[row] + np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row]] = values
        return np.where(lengths > 0, starts << LENGTH_BITS | lengths, 0)

    def _coded(self, strings: Strings) -> Int64s:
        assert self._texts is not None, "there is a column of texts"
        try:
            return self._texts.add(strings)
        except MemoryError:
            # Texts without a code are like those that cannot have one.
            codes = self._texts.find(strings)
            codes[(codes == MISSING) & (np.diff(strings.offsets) > 0)] = COLLIDES
            return codes


def _array_type(spec: Input) -> np.dtype[Any]:
    if spec.ragged or spec.dtype == "int64":
        return np.dtype(np.int64)
    return np.dtype(np.float32 if spec.dtype == "float32" else np.int32)


def _missing(spec: Input) -> float:
    if spec.ragged or spec.dtype == "int64":
        return 0
    return np.nan if spec.dtype == "float32" else MISSING
