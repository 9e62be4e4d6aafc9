"""Say of items whether they pass a filter, from columns by position and, where these do not hold, from records.

A filter is evaluated for a block of positions at a time, in numpy, into one bit a position; the scan leaves out the
others (code_scan). Positions whose columns do not hold in the reader's state (filter_columns) are read by key, as of
its epoch. So the bits are those of the state's records, exactly.

Invariants
- An item passes if it passes every clause. A missing value (NaN, an empty text or list, an item without a record) makes
  a clause false, and its complement true. Of a list, one value is enough.
- Both ways of reading, by position and by key, end in the same tests (_passes).
- Which positions hold is read first, then the codes of texts, then columns: a position that holds has all of its texts
  among the codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.extensions.top_items import record_reads
from freshet_serving.processor.extensions.top_items.code_scan import WORD
from freshet_serving.processor.extensions.top_items.filter_text import Clause, read_filter
from freshet_serving.processor.extensions.top_items.record_reads import LENGTH_BITS
from freshet_serving.processor.extensions.top_items.text_codes import TextCodes, codes_of
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.package import EntityEntry, Input, Manifest, column_specs, record_layout, unpack_records

FEW, FEW_TEXTS = 32, 4
"""Members of a set up to which each is compared."""
LEAST, GREATEST = -(2**63), 2**63 - 1
READ_ROWS = 1 << 13
"""Records that are read at a time."""

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class FilteredEntity:
    """The entity whose columns filters of a version read, by name; `words` are those of a record."""

    manifest: Manifest
    entity: EntityEntry
    table: int
    words: int
    columns: Mapping[str, Input]

    @classmethod
    def of(cls, manifest: Manifest, key: str, hash_seed: int = 0) -> Self | None:
        """Return the entity that is keyed by an input and has filters; None if there is none.

        Strings count only if they are hashed with the seed of the items' table.
        """
        entity = next((e for e in manifest.entities if e.key == key and e.filters), None)
        if entity is None:
            return None
        if manifest.input(key).dtype == "string" and manifest.table(entity.table).hash_seed != hash_seed:
            return None
        specs = [spec for spec in column_specs(manifest, entity) if spec.name != entity.key and not spec.columns]
        number = [t.name for t in manifest.tables].index(entity.table)
        words = record_layout(manifest, entity).words
        return cls(manifest, entity, number, words, {spec.name: spec for spec in specs})

    def array_of(self, column: str) -> str:
        """Return the name of the array that has a column by position (filter_columns)."""
        return f"filter_{list(self.columns).index(column)}"

    def read(self, table: Int64s, epoch: int, keys: Int64s) -> tuple[NDArray[np.int32], Bools]:
        """Return the records of keys, int32 [n, words], and for which there is one; `table` is its descriptor."""
        records, present = np.zeros((len(keys), self.words), np.int32), np.zeros(len(keys), np.bool_)
        record_reads.read_records(np.ascontiguousarray(table), epoch, np.ascontiguousarray(keys), records, present)
        return records, present

    def unpack(self, records: NDArray[np.int32], names: Sequence[str]) -> dict[str, Column]:
        columns = unpack_records(self.manifest, self.entity, records, names)
        if len(columns) < len(names):
            raise FreshetError(f"entity {self.entity.name!r}: a record lacks the texts that filters read")
        return columns


class ItemFilter:
    """A filter of one request; `recorded` if items without a record never pass. Thread-safe."""

    def __init__(self, text: bytes, source: FilteredEntity, recorded: bool = False) -> None:
        """Read a filter, b"" for one that all items pass; raise BadInput if it is none of this entity."""
        self.clauses, self.recorded, self.source = read_filter(text, source.columns) if text else [], recorded, source
        self._names = list(dict.fromkeys(clause.column.name for clause in self.clauses))
        self._codes = [None if clause.texts is None else codes_of(clause.texts) for clause in self.clauses]
        for clause, codes in zip(self.clauses, self._codes):
            if codes is not None and len(codes) < len(set(clause.texts or ()) - {b""}):
                raise BadInput(f"filter.{clause.column.name}: expected texts of different hashes, got two of one")

    def of_keys(self, tables: NDArray[np.int64], epoch: int, keys: Int64s) -> Bools:
        """Return which items pass, bool [n]; `tables` are the descriptors, int64 [T, TABLE_FIELDS]."""
        passes = np.zeros(len(keys), np.bool_)
        for first in range(0, len(keys), READ_ROWS):
            part = passes[first : first + READ_ROWS]
            records, present = self.source.read(tables[self.source.table], epoch, keys[first : first + READ_ROWS])
            part[:] = not self.recorded and all(clause.negated for clause in self.clauses)
            if not self.clauses:
                part[present] = True
            elif present.any():
                columns = self.source.unpack(np.ascontiguousarray(records[present]), self._names)
                part[present] = self._of_columns(columns, int(present.sum()))
        return passes

    def _of_columns(self, columns: Mapping[str, Column], rows: int) -> Bools:
        passes = np.ones(rows, np.bool_)
        for clause, codes in zip(self.clauses, self._codes):
            column = columns[clause.column.name]
            splits = column.row_splits if isinstance(column, Ragged) else None
            values: Any = column.values if isinstance(column, Ragged) else column
            if isinstance(values, Strings):
                assert codes is not None, "the clause was read with its column's type"
                # Every text of the clause has a code here, and no other text has.
                passes &= _passes(clause, codes.find(values) >= 0, splits)
            else:
                passes &= _passes(clause, _matches(clause, clause.column.as_sent(values), clause.numbers), splits)
        return passes

    def begin(self, arrays: Mapping[str, NDArray[Any]], tables: NDArray[np.int64], epoch: int) -> FilterScan:
        """Return the filter over a state's positions, whose epoch is pinned, by what the version's writer keeps."""
        return FilterScan(self, arrays, tables, epoch)


class FilterScan:
    """A filter over the positions of one state, for as long as its epoch is pinned."""

    def __init__(
        self, items: ItemFilter, arrays: Mapping[str, NDArray[Any]], tables: NDArray[np.int64], epoch: int
    ) -> None:
        self._items, self._arrays, self._tables, self._epoch = items, arrays, tables, epoch
        count = int(arrays["code_count"][0])
        self._fresh = np.zeros(-(-count // WORD), np.int64)
        record_reads.copy_words(arrays["filter_fresh"], self._fresh)
        self._columns = [arrays[items.source.array_of(clause.column.name)] for clause in items.clauses]
        texts = TextCodes(dict(arrays)) if "text_bytes" in arrays else None
        self._members: list[NDArray[Any] | None] = []
        for clause in items.clauses:
            members = clause.numbers
            if clause.texts is not None:
                assert texts is not None, "a version with columns of texts has their codes"
                codes = texts.find(Strings.of(list(clause.texts)))
                members = np.unique(codes[codes >= 0])
            self._members.append(members)

    def bits(self, first: int, last: int) -> Int64s:
        """Return a bit for each position from `first` to before `last`, int64 words; `first` is a multiple of WORD."""
        arrays = self._arrays
        recorded = arrays["filter_there"][first:last] != 0
        passes = recorded.copy() if self._items.recorded else np.ones(last - first, np.bool_)
        for clause, column, members in zip(self._items.clauses, self._columns, self._members):
            values, splits = column[first:last], None
            if clause.column.ragged and clause.column.declared != "uint64":
                passes &= _lists_pass(clause, values, arrays["filter_lists"], members)
                continue
            if clause.column.ragged:
                values, splits = _listed(values, arrays["filter_lists"])
            if clause.column.dtype == "int64":
                values = clause.column.as_sent(values)
            matches = _matches(clause, values, members)
            if clause.column.dtype == "int64" and splits is None:
                # No whole number stands for none.
                matches &= recorded
            passes &= _passes(clause, matches, splits)
        # Positions that came after the bits were read do not hold.
        fresh, fresh_words = np.zeros(-(-len(passes) // WORD), np.int64), self._fresh[first // WORD : -(-last // WORD)]
        fresh[: len(fresh_words)] = fresh_words
        if (fresh != -1).any():
            stale = np.flatnonzero(np.unpackbits(fresh.view(np.uint8), bitorder="little")[: len(passes)] == 0)
            passes[stale] = self._items.of_keys(self._tables, self._epoch, keys_at(arrays, first + stale))
        words = np.zeros(-(-len(passes) // WORD), np.int64)
        packed = np.packbits(passes, bitorder="little")
        words.view(np.uint8)[: len(packed)] = packed
        return words


def keys_at(arrays: Mapping[str, NDArray[Any]], positions: Int64s) -> Int64s:
    """Return the keys of positions, which ascend."""
    of_file, rows = arrays["code_keys"], len(arrays["code_keys"])
    split = int(np.searchsorted(positions, rows))
    return np.concatenate([of_file[positions[:split]], arrays["code_more_keys"][positions[split:] - rows]])


def is_costly(clause: Clause) -> bool:
    """Report whether a clause takes several times as long as one that compares numbers."""
    return clause.column.ragged or (clause.numbers is not None and len(clause.numbers) > FEW)


def _listed(words: Int64s, lists: Int64s) -> tuple[Int64s, Int64s]:
    starts, lengths = words >> LENGTH_BITS, words & ((1 << LENGTH_BITS) - 1)
    splits = np.zeros(len(words) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return lists[np.repeat(starts - splits[:-1], lengths) + np.arange(splits[-1])], splits


def _lists_pass(clause: Clause, words: Int64s, lists: Int64s, members: NDArray[Any] | None) -> Bools:
    low, high = clause.low, clause.high
    if members is not None:
        low, high = (members[0], members[-1]) if len(members) else (1, 0)
    matches = np.empty(len(words), np.bool_)
    record_reads.match_lists(
        words,
        lists,
        LEAST if low is None else int(low),
        GREATEST if high is None else int(high),
        np.empty(0, np.int64) if members is None else members.astype(np.int64),
        matches,
    )
    return ~matches if clause.negated else matches


def _matches(clause: Clause, values: NDArray[Any], members: NDArray[Any] | None) -> Bools:
    """Return which values are in a clause's range or among its members; NaN is in none."""
    if members is None:
        low, high = clause.low, clause.high
        if low is None or high is None:
            return np.asarray(
                values <= high if high is not None else values >= low if low is not None else values == values
            )
        return np.asarray((values >= low) & (values <= high))
    if len(members) <= (FEW if clause.texts is None else FEW_TEXTS):
        matches = np.zeros(len(values), np.bool_)
        for member in members:
            matches |= values == member
        return matches
    if clause.texts is not None:
        # Codes are small: a table of them is read once a value. Below and above the members is nobody.
        table = np.zeros(int(members[-1]) + 3, np.bool_)
        table[members + 1] = True
        return table[np.clip(values.astype(np.int64) + 1, 0, len(table) - 1)]
    index = hash_index.empty_index(hash_index.capacity_for(len(members)))
    hash_index.build(index.ctypes.data, len(index), _bits(members))
    refs = np.empty(len(values), np.int64)
    hash_index.find(index.ctypes.data, len(index), _bits(values), refs)
    return np.asarray(refs >= 0)


def _bits(values: NDArray[Any]) -> Int64s:
    """Return numbers as keys: equal numbers have equal ones."""
    if values.dtype == np.float32:
        # The two zeros are equal.
        return (values + np.float32(0)).view(np.int32).astype(np.int64)
    return np.ascontiguousarray(values).view(np.int64)


def _passes(clause: Clause, matches: Bools, splits: Int64s | None) -> Bools:
    """Return which items pass a clause, where each has values from one of `splits` to the next; None for one each."""
    if splits is not None:
        before = np.zeros(len(matches) + 1, np.int64)
        np.cumsum(matches, out=before[1:])
        matches = before[splits[1:]] > before[splits[:-1]]
    return ~matches if clause.negated else matches
