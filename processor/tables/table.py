"""Serve one table: the loaded version's rows in their read-only mmap, newer rows in an arena beside them (MVCC).

Ownership. One writer (the version's lock holder) calls everything but the kernels; readers only see the descriptor, a
row of plain integers, through a published state, and read it in kernels without a lock.

Invariants
- Rows of the file are never written. An arena slot is written only while no head points at it.
- The index is private memory. Its entries are claimed and their refs replaced, but never moved or emptied; to grow,
  another index is built beside it, which readers get with the next state.
- A slot is reused only after every reader that could hold a ref to it has gone (processor.tables.arena).
- Deltas that cannot be undone and that every reader sees are vacuumed (settled) in order: the rows that they replaced
  are freed, and their own rows become the only ones of their keys, reached without comparing epochs. So a version chain
  holds the versions of deltas that are not settled, newest first, and ends in at most one settled row.
- Only the writer follows a version chain past the row version that it needs, and no row in the chain has been freed.
- A call that raises has changed nothing that matters: everything it needs (slots, copies, a larger index) is allocated
  first, and the caller holds everything that undo() needs before the first head moves. undo() allocates no array, and
  may be called for a delta that was staged in part or not at all. Each kernel keeps the counts of what it changes.
- Without a memory budget, keys that are 0, 1, 2 ... are row numbers, recognised by the keys of the file. `changed` has
  a bit for each row, set before the key's head first leaves the file's row and never cleared, and `heads` the head of
  each key whose bit is set (kernels.rows): 8 bytes a row, but only pages with a changed row take memory. The index
  still holds all keys: it finds new ones, and deltas, undo and removals work on it.
- With a filter (kernels.key_filter), for lookups of ids that mostly have no row, the index and its filter are replaced
  together. A filter may say yes of an id that the index lacks, never no of one that it has: it needs no undo, and knows
  nothing of epochs.
- `torn` is set before the first change that must be completed, and cleared once it is: a call that raises in between
  leaves it set, without allocating memory. A torn table is correct for its readers, but is not changed any more.

Costs: a delta of m rows costs m probes and m rows of memory, vacuuming it m probes more; a superseded row is freed once
the delta that replaced it is settled. Growing the index costs O(keys), amortised, in the writer, without the GIL.

Rejected: an overlay index that is merged later (a second probe for every unseen id and for every id of the file, on
each read) and updating rows in place (no atomicity, no rollback).
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, TooLarge
from freshet_serving.processor.kernels import index as hash_index
from freshet_serving.processor.kernels import key_filter
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.memory import advise, pieces, private_copy, reserve
from freshet_serving.processor.package import ALIGNMENT, RECORD, STORED_TYPES, TableDelta, TableEntry, all_below
from freshet_serving.processor.tables.arena import SlotAllocator

if TYPE_CHECKING:
    from freshet_serving.processor.tables.tier import Tier, TierStats

MIN_ARENA_SLOTS = 1 << 26
MAX_REFS = 2**31 - 1
GROW_AT = (7, 8)
SETTLE_ROWS = 256
"""Minimum number of retired rows that a delta vacuums: a few microseconds."""

Int64s = NDArray[np.int64]


def packed(
    keys: Int64s, rows: NDArray[Any], dtype: str = "float32", frequencies: NDArray[np.uint32] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the tensors of a table file, with the index prebuilt and the rows stored as `dtype`.

    If the ids are 0 to n - 1, rows lie in their order, so that the table is read by row number (kernels.rows).
    Rows begin on cache lines; the tensor `pad` aligns what follows them, too, so that the file can be mapped as it is.

    Args:
        keys: int64 [n].
        rows: float32 [n, dim]; of records int32.
        frequencies: How often training used each key, uint32 [n], for tables with a memory budget.

    Raises:
        BadInput: An id occurs twice, or the type cannot hold a row.
    """
    if frequencies is not None and (frequencies.dtype != np.uint32 or frequencies.shape != keys.shape):
        raise BadInput(f"table: expected {len(keys)} uint32 frequencies, got {frequencies.dtype.name}")
    if dtype == RECORD:
        return packed_stored(keys, rows, frequencies=frequencies)
    # Loaded by who writes tables.
    from freshet_serving.processor.tables.quantise import quantise

    stored = quantise(rows, dtype)
    return packed_stored(keys, stored.rows, stored.scales if STORED_TYPES[dtype].scaled else None, frequencies)


def _key_order(keys: Int64s) -> Int64s | None:
    """Return the row of each key if the keys are row numbers in another order, else None."""
    count = len(keys)
    if are_row_numbers(keys) or not count or keys.min() != 0 or keys.max() != count - 1:
        return None
    at = np.full(count, -1, np.int64)
    at[keys] = np.arange(count)
    return at if at.min() == 0 else None


def packed_stored(
    keys: Int64s,
    rows: NDArray[Any],
    scales: NDArray[np.float32] | None = None,
    frequencies: NDArray[np.uint32] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return packed()'s tensors for rows [n, dim] and scales, float32 [n], of the table's type; raise BadInput."""
    order = _key_order(keys)
    if order is not None:
        keys, rows = keys[order], rows[order]
        scales = None if scales is None else scales[order]
        frequencies = None if frequencies is None else frequencies[order]
    index = hash_index.empty_index(hash_index.capacity_for(len(keys)))
    twice = hash_index.build(index.ctypes.data, len(index), keys)
    if twice >= 0:
        raise BadInput(f"table: id {keys[twice]} occurs more than once")
    pad = np.zeros(-rows.nbytes % ALIGNMENT, np.uint8)
    arrays = {"index": index, "rows": rows, "pad": pad, "keys": keys}
    if scales is not None:
        arrays["scales"] = scales
    if frequencies is not None:
        arrays["frequencies"] = frequencies
    return arrays


def descriptor(spec: TableEntry, arrays: Mapping[str, NDArray[Any]]) -> list[int]:
    """Return a table's descriptor (kernels.pool) of ServedTable.arrays, or mappings of them, which must outlive it."""
    tier = [0, 0, 0, 0]
    if "ring" in arrays:
        # Loaded with the first table that has a memory budget.
        from freshet_serving.processor.tables.row_log import tier_fields

        tier = tier_fields(spec, arrays)
    return [
        arrays["index"].ctypes.data,
        len(arrays["index"]),
        arrays["base"].ctypes.data,
        len(arrays["base"]),
        arrays["arena"].ctypes.data,
        arrays["meta"].ctypes.data,
        spec.dim * STORED_TYPES[spec.dtype].dtype.itemsize,
        arrays["default"].ctypes.data,
        STORED_TYPES[spec.dtype].code + (row_kernels.TIERED if "ring" in arrays else 0),
        arrays["scales"].ctypes.data,
        arrays["arena_scales"].ctypes.data,
        *tier,
        len(arrays["base"]) if "changed" in arrays else 0,
        *(arrays[name].ctypes.data if name in arrays else 0 for name in ("changed", "heads")),
        int(spec.unknown_key is not None),
        spec.unknown_key or 0,
        arrays["filter"].ctypes.data if "filter" in arrays else 0,
    ]


def descriptors(tables: Sequence[Sequence[int]]) -> Int64s:
    """Return the descriptors of all tables for kernels, int64 [T, TABLE_FIELDS]; one row of zeros without tables."""
    return np.array(tables or [[0] * row_kernels.TABLE_FIELDS], np.int64)


def _checked(spec: TableEntry, arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return the file's rows and scales; raise Corrupt unless all tensors fit the manifest and each other."""
    where, kind = f"table {spec.name!r}", STORED_TYPES[spec.dtype]
    keys, index, rows = (arrays.get(name) for name in ("keys", "index", "rows"))
    if keys is None or index is None or rows is None:
        raise Corrupt(f"{where}: expected keys, index and rows")
    if keys.dtype != np.int64 or keys.shape != (spec.rows,):
        raise Corrupt(f"{where}: expected {spec.rows} int64 keys, got {keys.dtype.name} {list(keys.shape)}")
    if rows.dtype != kind.dtype or rows.shape != (spec.rows, spec.dim):
        sent = f"{rows.dtype.name} {list(rows.shape)}"
        raise Corrupt(f"{where}: expected rows {[spec.rows, spec.dim]} of {spec.dtype}, got {sent}")
    scales = arrays.get("scales", np.empty(0, np.float32))
    if scales.dtype != np.float32 or scales.shape != (spec.rows if kind.scaled else 0,):
        expected = f"{spec.rows if kind.scaled else 0} float32 scales for {spec.dtype}"
        raise Corrupt(f"{where}: expected {expected}, got {scales.dtype.name} {list(scales.shape)}")
    if not all(_sound(piece.view(np.float32)) for piece in pieces(scales)):
        raise Corrupt(f"{where}: expected scales of 0 or more, got a negative one, NaN or infinity")
    frequencies = arrays.get("frequencies")
    if frequencies is not None and (frequencies.dtype != np.uint32 or frequencies.shape != (spec.rows,)):
        sent = f"{frequencies.dtype.name} {list(frequencies.shape)}"
        raise Corrupt(f"{where}: expected {spec.rows} uint32 frequencies, got {sent}")
    if index.dtype != np.int64 or index.ndim != 2 or index.shape[1] != 2:
        raise Corrupt(f"{where}: expected an int64 index of two columns, got {list(index.shape)}")
    if not spec.rows < len(index) <= hash_index.MAX_CAPACITY:
        raise Corrupt(f"{where}: expected an index of more than {spec.rows} entries, got {len(index)}")
    return rows, scales


def are_row_numbers(keys: Int64s) -> bool:
    """Return True if there are keys and they are 0, 1, 2 ...: each key is its row's number."""
    first = 0
    for piece in pieces(keys):
        part = piece.view(np.int64)
        if (part != np.arange(first, first + len(part))).any():
            return False
        first += len(part)
    return first > 0


def _sound(scales: NDArray[np.float32]) -> bool:
    return all_below(scales, np.inf) and bool((scales >= 0).all())


def _index(spec: TableEntry, index: Int64s) -> Int64s:
    """Return a private copy of the index, checked to have one entry for each row: readers never see unchecked bytes."""
    copy = private_copy(index, f"index-{spec.name}")
    if hash_index.audit(copy.ctypes.data, len(copy), spec.rows) != spec.rows:
        raise Corrupt(f"table {spec.name!r}: the index does not have one entry per row")
    return copy


NONE: Int64s = np.empty(0, np.int64)
USED, ROWS = 0, 1


@dataclass(slots=True)
class RowVersions:
    """Row versions that one delta made in one table. Without slots nothing was staged.

    Attributes:
        keys: int64 [m].
        slots: The slots that hold the versions or tombstones, int64 [m].
        rows: Number of rows in the table before the delta.
    """

    keys: Int64s = field(default_factory=lambda: NONE)
    slots: Int64s = field(default_factory=lambda: NONE)
    rows: int = 0


class ServedTable:
    """The rows of one table by key, as of any epoch that is still pinned or can be restored by undo().

    `rows_elsewhere`: the rows of the version lie outside of the process, and only those of deltas in it.
    """

    rows_elsewhere = False

    def __init__(
        self,
        spec: TableEntry,
        arrays: dict[str, NDArray[Any]],
        *,
        budget_nbytes: int = 0,
        scratch: Path | None = None,
        filtered: bool = False,
    ) -> None:
        """Map a table file's tensors, see packed(), and reserve memory for newer rows.

        Args:
            budget_nbytes: Memory budget for rows; 0 for no limit.
            scratch: With a budget: a folder with room for the rows that deltas change (processor.tables.tier).
            filtered: Whether to keep a filter of the ids, for lists of ids that mostly have no row.

        Raises:
            Corrupt: The arrays do not fit the manifest.
            BadInput: The scratch folder cannot be written to.
        """
        self.spec = spec
        self._type = STORED_TYPES[spec.dtype]
        self._row_nbytes = spec.dim * self._type.dtype.itemsize
        self._base, self._scales = _checked(spec, arrays)
        self._index = _index(spec, arrays["index"])
        # Used entries of the index, and rows in the newest epoch; the kernels update them.
        self._counts = np.array([spec.rows, spec.rows])
        self._torn = False
        slots = min(max(MIN_ARENA_SLOTS, 4 * spec.rows), MAX_REFS - spec.rows)
        arena = reserve(slots * self._row_nbytes, f"arena-{spec.name}")[: slots * self._row_nbytes]
        self._arena = arena.view(self._type.dtype).reshape(slots, spec.dim)
        scaled = slots if self._type.scaled else 0
        self._arena_scales = reserve(scaled * 4, f"scales-{spec.name}")[: scaled * 4].view(np.float32)
        self._meta = reserve(slots * 16, f"meta-{spec.name}").view(np.int64)[: slots * 2].reshape(slots, 2)
        self._default = reserve(spec.dim * 4, f"default-{spec.name}").view(np.float32)[: spec.dim]
        self._default[:] = spec.default or 0.0
        self._slots = SlotAllocator(slots, f"table {spec.name!r}")
        self._retired: deque[tuple[int, RowVersions]] = deque()
        # A row of a table with a memory budget may be in memory or on disk, so its readers need its head.
        self._numbers: dict[str, Int64s] = {}
        if not budget_nbytes and are_row_numbers(arrays["keys"]):
            for name, words in (("changed", -(-spec.rows // 64)), ("heads", spec.rows)):
                self._numbers[name] = reserve(words * 8, f"{name}-{spec.name}").view(np.int64)[:words]
        # Row numbers are known by their size, and readers leave out what the filter denies: it must read zeros.
        zeros = spec.unknown_key is None and not self._default.view(np.uint32).any()
        self._filter = self._filter_of(self._index) if filtered and zeros and not self._numbers else None
        self._tier: Tier | None = None
        if budget_nbytes:
            if scratch is None:
                raise BadInput(f"table {spec.name!r}: a memory budget requires a scratch folder")
            from freshet_serving.processor.tables.tier import Tier

            self._tier = Tier(spec, self._slots, self._meta, budget_nbytes, scratch)
            advise(self._base, mmap.MADV_RANDOM)
        # Kept for the writer's own kernels: building it for each step of each table took a fifth of a small delta's
        # time, and undo() must not allocate memory.
        self._row = np.array(self.descriptor())
        if self._tier and "frequencies" in arrays:
            self._tier.fill(self._row, arrays["keys"], arrays["frequencies"])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every buffer that readers use, by name; a state keeps these referenced.

        From the file: base [rows, dim]; scales float32 [rows], or [0] if the type has none. Reserved memory: index
        int64 [capacity, 2], another array once it has grown; arena [slots, dim]; arena_scales float32 [slots] or [0];
        meta int64 [slots, 2]; default float32 [dim]; filter int64 (kernels.key_filter), another array with each index.
        With a memory budget also those of Tier.arrays.
        """
        return {
            "index": self._index,
            "base": self._base,
            "arena": self._arena,
            "meta": self._meta,
            "default": self._default,
            "scales": self._scales,
            "arena_scales": self._arena_scales,
            **(self._tier.arrays if self._tier else {}),
            **self._numbers,
            **({} if self._filter is None else {"filter": self._filter}),
        }

    def descriptor(self) -> list[int]:
        """Return the table's current descriptor, for readers of this process."""
        return descriptor(self.spec, self.arrays)

    @property
    def rows(self) -> int:
        return int(self._counts[ROWS])

    @property
    def torn(self) -> bool:
        """True if a change was interrupted: no other may follow."""
        return self._torn or (self._tier is not None and self._tier.torn)

    def some_keys(self, most: int, where: float = 0.0) -> Int64s:
        """Return up to `most` ids that have or had a row, in the order of the index from part `where` (0 to 1) on."""
        first = int(where * max(0, len(self._index) - 64 * most))
        entries: Int64s = self._index[first : first + 64 * most]
        keys: Int64s = entries[entries[:, 1] >= 0, 0]
        return keys[:most]

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory by part: file rows (mapped), index, arena in use; with a budget also log and bookkeeping."""
        slot_nbytes = self._row_nbytes + 16 + (4 if self._type.scaled else 0)
        rows = self._base.nbytes + self._scales.nbytes
        index = self._index.nbytes + sum(array.nbytes for array in self._numbers.values())
        index += 0 if self._filter is None else self._filter.nbytes
        parts = {"rows": rows, "index": index, "arena": self._slots.bump * slot_nbytes}
        return parts | ({"log": self._tier.tally().log_nbytes, "books": self._tier.nbytes} if self._tier else {})

    @property
    def tiered(self) -> bool:
        """True if the table has a memory budget."""
        return self._tier is not None

    @property
    def tier(self) -> TierStats | None:
        """Statistics of the tiers; None without a memory budget."""
        return self._tier.tally() if self._tier else None

    def apply(self, delta: TableDelta, epoch: int, versions: RowVersions | None = None) -> RowVersions:
        """Stage and publish a delta's rows; readers of epochs before `epoch`, which no row carries yet, see no change.

        `versions` is filled before the first row is published; undo() accepts it even if this raises.
        """
        versions = versions or RowVersions()
        removed = self._present(delta.removed) if len(delta.removed) else delta.removed
        self._make_room(delta.keys)
        rows = np.ascontiguousarray(delta.rows)
        count = len(delta.keys)
        versions.keys = np.concatenate([delta.keys, removed])
        versions.rows = self.rows
        versions.slots = self._slots.allocate(len(versions.keys))
        upserts, tombstones = versions.slots[:count], versions.slots[count:]
        row_kernels.upsert(self._row, delta.keys, rows.ctypes.data, self.spec.dim, upserts, epoch, self._counts)
        if len(removed):
            row_kernels.add_tombstones(self._row, versions.keys[count:], tombstones, epoch, self._counts)
        return versions

    def undo(self, versions: RowVersions, safe_seq: int) -> None:
        """Remove the newest delta's row versions, once. No reader may be pinned to an epoch that sees them.

        The slots are reused once every reader has reached `safe_seq`, the next flip.
        """
        if not len(versions.slots):
            return
        self._torn = True
        row_kernels.unpublish(self._row, versions.keys, versions.slots)
        self._counts[ROWS] = versions.rows
        self._slots.free_deferred(versions.slots, safe_seq)
        self._torn = False

    def retire(self, versions: RowVersions, publish_seq: int) -> None:
        """Mark a delta that readers see at `publish_seq` as one that can no longer be undone, nor any before it."""
        self._retired.append((publish_seq, versions))

    def reclaim(self, oldest_seq: int, safe_seq: int, coming: int = 0) -> None:
        """Vacuum retired deltas that every reader sees (oldest_seq), and make slots freed before usable again.

        It vacuums twice as many rows as the next delta brings (`coming`), so that a small delta does not pay for a
        large one; or all of them if the arena would be full otherwise. Slots freed here wait for safe_seq, the next
        flip.
        """
        most = max(SETTLE_ROWS, 2 * coming) if coming <= self._slots.room else sys.maxsize
        while most > 0 and self._retired and self._retired[0][0] <= oldest_seq:
            publish_seq, versions = self._retired[0]
            rest = None
            if len(versions.keys) > most:
                rest = publish_seq, RowVersions(versions.keys[most:], versions.slots[most:])
                versions = RowVersions(versions.keys[:most], versions.slots[:most])
            most -= len(versions.keys)
            self._vacuum(versions, safe_seq)
            if rest is None:
                self._retired.popleft()
            else:
                self._retired[0] = rest
        self._slots.reclaim(oldest_seq)
        if self._tier:
            self._tier.reclaim(oldest_seq)

    def maintain(self, oldest_seq: int, safe_seq: int, now_s: float) -> bool:
        """Run reclaim() and one slice, about a millisecond, of keeping the table within its memory budget.

        Call it repeatedly under the version's lock, with a monotonic clock's reading. Returns True if freed places wait
        for safe_seq: a flip, even to the same content, makes them usable again.
        """
        self.reclaim(oldest_seq, safe_seq)
        return self._tier.maintain(self._row, safe_seq, now_s, self._base) if self._tier else False

    def _vacuum(self, versions: RowVersions, safe_seq: int) -> None:
        count = len(versions.keys)
        rows, replaced, dead = np.empty(count, np.bool_), np.empty(count, np.int64), np.empty(count, np.int64)
        row_kernels.plan_vacuum(self._row, versions.slots, rows, replaced, dead)
        # Every reader sees the delta, so none follows the chain to the rows it replaced. Tombstones may still be read.
        freed, buried = replaced[replaced >= 0], versions.slots[~rows]
        books = self._tier.plan_vacuum(versions.keys, versions.slots, replaced, rows, dead) if self._tier else None
        self._torn = True
        row_kernels.vacuum(self._row, versions.keys, versions.slots)
        if self._tier and books:
            self._tier.vacuum(books)
        self._slots.free(freed)
        self._slots.free_deferred(buried, safe_seq)
        self._torn = False

    def export(self, epoch: int) -> tuple[Int64s, NDArray[Any]]:
        """Return every key, ascending, and its row as of an epoch: int64 [n], float32 or records [n, dim] (copies)."""
        table, capacity = self._row, len(self._index)
        keys, refs = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = row_kernels.live(table, epoch, keys, refs)
        order = np.argsort(keys[:count])
        rows = np.empty((count, self.spec.dim), np.float32)
        row_kernels.gather(table, refs[:count][order], rows)
        return keys[:count][order], rows.view(self._type.carried)

    def look_up(self, keys: Int64s, epoch: int) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return which int64 keys [n] have a row in memory as of an epoch, bool [n], and those m rows [m, dim]."""
        refs = np.empty(len(keys), np.int64)
        row_kernels.look_up(self._row, epoch, keys, refs)
        has_row = refs >= 0
        rows = np.empty((int(np.count_nonzero(has_row)), self.spec.dim), np.float32)
        row_kernels.gather(self._row, refs[has_row], rows)
        return has_row, rows.view(self._type.carried)

    def unknown_row(self, epoch: int) -> NDArray[np.float32]:
        """Return the row of keys without one as of an epoch, float32 [dim]."""
        if self.spec.unknown_key is not None:
            has_row, rows = self.look_up(np.array([self.spec.unknown_key], np.int64), epoch)
            if has_row[0]:
                return np.array(rows[0])
        return self._default

    def _present(self, keys: Int64s) -> Int64s:
        """Return those of `keys` that have a row in the newest epoch."""
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        present = refs >= 0
        newer = (refs >= self.spec.rows) & (refs < row_kernels.SETTLED)
        present[newer] = self._meta[refs[newer] - self.spec.rows, 0] & 1 == 0
        return keys[present]

    def _make_room(self, keys: Int64s) -> None:
        """Grow the index if the unknown ones of `keys` could fill it beyond 7/8; readers keep the index they have."""
        if self._fits(len(keys)):
            return
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        unknown = int(np.count_nonzero(refs == hash_index.ABSENT))
        if self._fits(unknown):
            return
        # Entries that stay ABSENT are not copied: ids that come and go must not grow the index forever.
        most = int(np.count_nonzero(self._index[:, 1] >= 0)) + unknown
        capacity = hash_index.capacity_for(most + most // 4)
        if most >= capacity:
            raise TooLarge(f"table {self.spec.name!r}: more ids than an index can hold; publish a new version")
        grown = reserve(capacity * 16, f"index-{self.spec.name}").view(np.int64)[: capacity * 2].reshape(capacity, 2)
        grown[:, 1] = hash_index.EMPTY
        used = hash_index.rehash(self._index.ctypes.data, len(self._index), grown.ctypes.data, capacity)
        replaced = {"index": grown}
        if self._filter is not None:
            replaced["filter"] = self._filter_of(grown)
        row = np.array(descriptor(self.spec, {**self.arrays, **replaced}))
        self._index, self._row, self._filter = grown, row, replaced.get("filter")
        self._counts[USED] = used

    def _filter_of(self, index: Int64s) -> Int64s:
        words = key_filter.words_for(len(index))
        key_words: Int64s = reserve(words * 8, f"filter-{self.spec.name}").view(np.int64)[:words]
        key_filter.fill(key_words.ctypes.data, index.ctypes.data, len(index))
        return key_words

    def _fits(self, keys: int) -> bool:
        times, parts = GROW_AT
        return (int(self._counts[USED]) + keys) * parts <= len(self._index) * times
