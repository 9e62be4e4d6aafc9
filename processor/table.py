"""One served table: the loaded version's rows in their read-only mmap, newer rows in an arena beside them.

Who owns what: one writer (the version's lock holder) calls everything but the kernels; readers only ever see the
descriptor, a row of plain integers, through a published state, and walk it in kernels without a lock.

Invariants
- Rows of the file are never written. An arena slot is written only while no head points at it.
- The index is private memory. Its entries are claimed and their refs replaced, never moved or emptied; growth builds
  another index beside it, which readers meet with the next state.
- A slot is reused only after every reader that could have held a ref to it has gone: slots wait in limbo, tagged
  with the flip that must have reached all readers.

Costs: a delta of m rows costs m probes and m rows of memory; a superseded row is reclaimed once the delta that
replaced it can no longer be undone. Growing the index costs O(keys), amortised, in the writer, outside the GIL.

Refused: an overlay index that is folded in later (a second probe for every unseen id and for every id of the file, on
each read) and rows updated in place (no atomicity, no rollback).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processor.errors import BadInput, Corrupt, TooLarge
from processor.kernels import index as hash_index
from processor.kernels import rows as row_kernels
from processor.memory import private_copy, reserve
from processor.package.delta import TableDelta
from processor.package.manifest import Table
from processor.package.rowtypes import ROW_TYPES, all_below
from processor.package.tensors import ALIGNMENT
from processor.quantise import CODES, quantise

MIN_ARENA_SLOTS = 1 << 26
MAX_REFS = 2**31 - 1
GROW_AT = (7, 8)

Int64s = NDArray[np.int64]


def packed(keys: Int64s, rows: NDArray[np.float32], dtype: str = "float32") -> dict[str, NDArray[Any]]:
    """The tensors of a table file: the index prebuilt, rows as `dtype` and on cache lines.

    keys: int64 [n]; rows: float32 [n, dim]. Raises BadInput for an id given twice and for rows that the type cannot
    hold. pad: bytes that bring what follows the rows to a cache line again, so that it can be mapped as it lies.
    """
    index = hash_index.empty_index(hash_index.capacity_for(len(keys)))
    twice = hash_index.build(index.ctypes.data, len(index), keys)
    if twice >= 0:
        raise BadInput(f"table: id {keys[twice]} occurs more than once")
    stored = quantise(rows, dtype)
    pad = np.zeros(-stored.rows.nbytes % ALIGNMENT, np.uint8)
    arrays = {"index": index, "rows": stored.rows, "pad": pad, "keys": keys}
    return arrays | ({"scales": stored.scales} if ROW_TYPES[dtype].scaled else {})


def descriptor(spec: Table, arrays: Mapping[str, NDArray[Any]]) -> list[int]:
    """A table as readers' kernels take it: addresses, bounds and sizes (see kernels.pool).

    arrays: those of ServedTable.arrays, or mappings of the same bytes in another process; they must outlive its use.
    """
    return [
        arrays["index"].ctypes.data,
        len(arrays["index"]),
        arrays["base"].ctypes.data,
        len(arrays["base"]),
        arrays["arena"].ctypes.data,
        arrays["meta"].ctypes.data,
        spec.dim * ROW_TYPES[spec.dtype].dtype.itemsize,
        arrays["default"].ctypes.data,
        CODES[spec.dtype],
        arrays["scales"].ctypes.data,
        arrays["arena_scales"].ctypes.data,
    ]


def _checked(spec: Table, arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The file's rows and scales; raises Corrupt unless all of its tensors fit the manifest and each other."""
    where, kind = f"table {spec.name!r}", ROW_TYPES[spec.dtype]
    keys, index, rows = (arrays.get(name) for name in ("keys", "index", "rows"))
    if keys is None or index is None or rows is None:
        raise Corrupt(f"{where}: keys, index and rows wanted")
    if keys.dtype != np.int64 or keys.shape != (spec.rows,):
        raise Corrupt(f"{where}: {spec.rows} int64 keys wanted, got {keys.dtype.name} {list(keys.shape)}")
    if rows.dtype != kind.dtype or rows.shape != (spec.rows, spec.dim):
        got = f"{rows.dtype.name} {list(rows.shape)}"
        raise Corrupt(f"{where}: rows {[spec.rows, spec.dim]} of {spec.dtype} wanted, got {got}")
    scales = arrays.get("scales", np.empty(0, np.float32))
    if scales.dtype != np.float32 or scales.shape != (spec.rows if kind.scaled else 0,):
        wanted = f"{spec.rows if kind.scaled else 0} float32 scales for {spec.dtype}"
        raise Corrupt(f"{where}: {wanted} wanted, got {scales.dtype.name} {list(scales.shape)}")
    if not (all_below(scales, np.inf) and (scales >= 0).all()):
        raise Corrupt(f"{where}: scales of 0 or more wanted, got a negative one, NaN or infinity")
    if index.dtype != np.int64 or index.ndim != 2 or index.shape[1] != 2:
        raise Corrupt(f"{where}: an int64 index of two columns wanted, got {list(index.shape)}")
    capacity = len(index)
    if not spec.rows < capacity <= hash_index.MAX_CAPACITY:
        raise Corrupt(f"{where}: an index of more than {spec.rows} entries wanted, got {capacity}")
    if hash_index.audit(index.ctypes.data, capacity, spec.rows) != spec.rows:
        raise Corrupt(f"{where}: the index does not hold one entry a row")
    return rows, scales


@dataclass(slots=True)
class Versions:
    """What one delta did to one table: int64 [m] keys, and the slots that hold their new versions or tombstones."""

    keys: Int64s
    slots: Int64s


class ServedTable:
    """Rows by key, as of any epoch that is still pinned or undoable."""

    def __init__(self, spec: Table, arrays: dict[str, NDArray[Any]]) -> None:
        """arrays: the table file's (views), see packed(); raises Corrupt when they do not fit the manifest."""
        self.spec = spec
        self._type = ROW_TYPES[spec.dtype]
        self._row_nbytes = spec.dim * self._type.dtype.itemsize
        self._base, self._scales = _checked(spec, arrays)
        self._index = private_copy(arrays["index"], f"index-{spec.name}")
        self._used = spec.rows
        slots = min(max(MIN_ARENA_SLOTS, 4 * spec.rows), MAX_REFS - spec.rows)
        arena = reserve(slots * self._row_nbytes, f"arena-{spec.name}")[: slots * self._row_nbytes]
        self._arena = arena.view(self._type.dtype).reshape(slots, spec.dim)
        scaled = slots if self._type.scaled else 0
        self._arena_scales = reserve(scaled * 4, f"scales-{spec.name}")[: scaled * 4].view(np.float32)
        self._meta = reserve(slots * 16, f"meta-{spec.name}").view(np.int64)[: slots * 2].reshape(slots, 2)
        self._default = reserve(spec.dim * 4, f"default-{spec.name}").view(np.float32)[: spec.dim]
        self._default[:] = spec.default or 0.0
        self._bump = 0
        self._free = np.empty(0, np.int64)
        self._limbo: deque[tuple[int, Int64s]] = deque()
        self._rows = spec.rows

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every buffer that readers use, by name; a state keeps these referenced.

        Of the file: base [rows, dim], scales float32 [rows], [0] where the type has none. Reserved memory: index int64
        [capacity, 2], another array once it has grown; arena [slots, dim], arena_scales float32 [slots] or [0], meta
        int64 [slots, 2], default float32 [dim].
        """
        return {
            "index": self._index,
            "base": self._base,
            "arena": self._arena,
            "meta": self._meta,
            "default": self._default,
            "scales": self._scales,
            "arena_scales": self._arena_scales,
        }

    def descriptor(self) -> list[int]:
        """The table as it is now, for readers of this process."""
        return descriptor(self.spec, self.arrays)

    @property
    def rows(self) -> int:
        """Rows in the newest epoch."""
        return self._rows

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory by part: file rows (mapped), index, arena in use."""
        slot_nbytes = self._row_nbytes + 16 + (4 if self._type.scaled else 0)
        rows = self._base.nbytes + self._scales.nbytes
        return {"rows": rows, "index": self._index.nbytes, "arena": self._bump * slot_nbytes}

    def apply(self, delta: TableDelta, epoch: int) -> Versions:
        """Stages and publishes the delta's rows; readers of epochs before `epoch` see no change."""
        removed = self._present(delta.removed) if len(delta.removed) else delta.removed
        self._make_room(delta.keys)
        slots = self._allocate(len(delta.keys) + len(removed))
        upserts, tombstones = slots[: len(delta.keys)], slots[len(delta.keys) :]
        address, capacity, base_rows = self._index.ctypes.data, len(self._index), self.spec.rows
        tally = np.empty(2, np.int64)
        rows = np.ascontiguousarray(delta.rows)
        table = np.array(self.descriptor())
        row_kernels.upsert(table, delta.keys, rows.ctypes.data, self.spec.dim, upserts, epoch, tally)
        if len(removed):
            row_kernels.bury(address, capacity, removed, tombstones, self._meta, base_rows, epoch)
        claimed, known = tally.tolist()
        self._used += claimed
        self._rows += len(delta.keys) - known - len(removed)
        return Versions(np.concatenate([delta.keys, removed]), slots)

    def undo(self, versions: Versions, safe_flip: int) -> None:
        """Takes the newest delta's versions back. No reader may be pinned to an epoch that sees them."""
        entries = self._entries(versions.keys)
        before = self._count_rows(versions.keys)
        row_kernels.unpublish(self._index.ctypes.data, entries, versions.slots, self._meta)
        self._rows += self._count_rows(versions.keys) - before
        self._limbo.append((safe_flip, versions.slots))

    def retire(self, versions: Versions, safe_flip: int) -> None:
        """Gives up what the delta's versions replaced: it can no longer be undone."""
        entries = self._entries(versions.keys)
        freed = np.empty(2 * len(entries), np.int64)
        address = self._index.ctypes.data
        count = row_kernels.superseded(address, entries, versions.slots, self._meta, self.spec.rows, freed)
        if count:
            self._limbo.append((safe_flip, freed[:count].copy()))

    def reclaim(self, oldest_flip: int) -> None:
        """Makes slots reusable whose last possible reader was pinned before `oldest_flip`."""
        while self._limbo and self._limbo[0][0] <= oldest_flip:
            self._free = np.concatenate([self._free, self._limbo.popleft()[1]])

    def export(self, epoch: int) -> tuple[Int64s, NDArray[np.float32]]:
        """Every key, ascending, with its row as of an epoch: int64 [n], float32 [n, dim] (copies)."""
        table, capacity = np.array(self.descriptor()), len(self._index)
        keys, refs = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = row_kernels.live(table, epoch, keys, refs)
        order = np.argsort(keys[:count])
        rows = np.empty((count, self.spec.dim), np.float32)
        row_kernels.gather(table, refs[:count][order], rows)
        return keys[:count][order], rows

    def _present(self, keys: Int64s) -> Int64s:
        """Those of `keys` that have a row in the newest epoch."""
        return keys[self._has_row(keys)]

    def _has_row(self, keys: Int64s) -> NDArray[np.bool_]:
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        present = refs >= 0
        newer = refs >= self.spec.rows
        present[newer] = self._meta[refs[newer] - self.spec.rows, 0] & 1 == 0
        return present

    def _count_rows(self, keys: Int64s) -> int:
        return int(np.count_nonzero(self._has_row(keys)))

    def _entries(self, keys: Int64s) -> Int64s:
        entries = np.empty(len(keys), np.int64)
        hash_index.claim(self._index.ctypes.data, len(self._index), keys, entries)
        return entries

    def _make_room(self, keys: Int64s) -> None:
        """Grows the index when the unknown ones of `keys` could fill it beyond 7/8; readers keep the one they have."""
        if self._fits(len(keys)):
            return
        refs = np.empty(len(keys), np.int64)
        hash_index.find(self._index.ctypes.data, len(self._index), keys, refs)
        unknown = int(np.count_nonzero(refs == hash_index.ABSENT))
        if self._fits(unknown):
            return
        # Entries that are ABSENT for good are left behind: ids that come and go must not grow the index for ever.
        most = int(np.count_nonzero(self._index[:, 1] >= 0)) + unknown
        capacity = hash_index.capacity_for(most + most // 4)
        if most >= capacity:
            raise TooLarge(f"table {self.spec.name!r}: more ids than an index can hold; publish a new version")
        grown = reserve(capacity * 16, f"index-{self.spec.name}").view(np.int64)[: capacity * 2].reshape(capacity, 2)
        grown[:, 1] = hash_index.EMPTY
        self._used = hash_index.rehash(self._index.ctypes.data, len(self._index), grown.ctypes.data, capacity)
        self._index = grown

    def _fits(self, keys: int) -> bool:
        times, parts = GROW_AT
        return (self._used + keys) * parts <= len(self._index) * times

    def _allocate(self, count: int) -> Int64s:
        recycled = min(count, len(self._free))
        fresh = count - recycled
        if self._bump + fresh > len(self._arena):
            raise TooLarge(
                f"table {self.spec.name!r}: the arena of {len(self._arena)} rows is full; publish a new version"
            )
        slots = np.concatenate([self._free[:recycled], np.arange(self._bump, self._bump + fresh)])
        self._free = self._free[recycled:]
        self._bump += fresh
        return slots
