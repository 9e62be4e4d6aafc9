"""Keep rows of a version's tables in the memory of a device, where batches read them by place.

A mirror belongs to one replica, in one process: it holds the pools on the device, and for each table a map from slots
of its arena to places (slot_kernels). Only catch_up() writes maps and pools, under `_writing`. The host decides what a
batch reads: a filled line names places that were found under the batch's pin.

Invariants
- A place that a reader pinned to an epoch may find holds the row that the host has at that ref. A slot of an arena is
  not written again while a reader may see it (processor.tables.table), and what is written to one is newer than what
  every reader of it could see; so copying its newest content over its place takes no row from anybody.
- Before lines of an epoch are filled, all rows of that epoch and earlier ones have been copied: catch_up() copies every
  slot whose stamp is newer than the last epoch that it was called for. A slot that is written meanwhile is of an epoch
  that nobody reads yet, and is copied again.
- Runs that read pools and the change of a pool exclude each other (`reading`, `_Exclusion`): a change takes the memory
  of the pool that it changes. Runs do not exclude each other.
- Nothing is sent to other processes: each finds the changes of a delta in the memory that it maps.
- A row without a place is sent by the host, in the same line.

Bounded: the pools are as large as when the mirror was made. A slot keeps its place; if all are taken, later slots have
none.

Costs: a delta costs a look at the stamp of every slot that is in use, 16 bytes each, and a copy of the rows that
changed. A run waits for a change of a pool, a fraction of a millisecond.

Rejected: a list of the slots of each delta, written by whoever applies it (the stamps are there); a second copy of each
pool that is changed while the first is read (twice the memory).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.backends.xla import Device
from freshet_serving.processor.extensions.device_rows import device_modules, slot_kernels
from freshet_serving.processor.extensions.device_rows.hot_rows import HotRows, Phases
from freshet_serving.processor.extensions.device_rows.slot_layout import PoolKey
from freshet_serving.processor.package import ROW_TYPES, TableEntry

log = logging.getLogger("freshet.device_rows")

COPIED = (256, 1024, 4096, 16384, 65536)
"""Rows that one update of a pool may have."""
SPARE, LEAST_SPARE = 4, 1 << 14
"""Places for rows that deltas bring: one for so many rows of the files, and at least so many."""
UPLOAD = COPIED[-1]
TURN = 1024
"""Rows that are missed before rows are moved."""


@dataclass(slots=True, eq=False)
class Pool:
    """Rows of one type and width on the device, their scales, [size, 1], and the first place that no row has had."""

    key: PoolKey
    size: int
    next: int
    rows: Any = None
    scales: Any = None

    @property
    def arguments(self) -> list[Any]:
        return [self.rows] if self.scales is None else [self.rows, self.scales]


@dataclass(slots=True)
class MirrorCounts:
    """Counters of what is sent to the device: `sent_nbytes` with batches, `moved_rows` of the rows of files."""

    changed_rows: int = 0
    changed_nbytes: int = 0
    sent_nbytes: int = 0
    host_rows: int = 0
    moved_rows: int = 0


@dataclass(slots=True)
class _Exclusion:
    """Lets any number of runs read, or one change write."""

    _condition: threading.Condition = field(default_factory=threading.Condition)
    _readers: int = 0
    _writers: int = 0

    def begin_reading(self) -> None:
        with self._condition:
            while self._writers:
                self._condition.wait()
            self._readers += 1

    def end_reading(self) -> None:
        with self._condition:
            self._readers -= 1
            if self._writers and not self._readers:
                self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._condition:
            self._writers += 1
            while self._readers:
                self._condition.wait()
        try:
            yield
        finally:
            with self._condition:
                self._writers -= 1
                self._condition.notify_all()


class RowMirror:
    """The rows of a version's tables on a device, in pools by type and width.

    `devices`, int64 [T, DEVICE_FIELDS], is where kernels find places (slot_kernels).
    """

    def __init__(self, device: Device, tables: Sequence[TableEntry], placed: Sequence[int]) -> None:
        """Plan pools for the rows of tables' files and some more; allocate() makes them, load() copies the rows.

        `placed` says by table how many rows of its file have room on the device; 0 for a table that the host reads.
        """
        self.devices = np.zeros((max(1, len(tables)), slot_kernels.DEVICE_FIELDS), np.int64)
        self.counts = MirrorCounts()
        self._device, self._tables, self._placed = device, tables, list(placed)
        self._exclusion, self._writing = _Exclusion(), threading.Lock()
        self._maps: dict[int, NDArray[np.int32]] = {}
        self._arrays: Sequence[Mapping[str, NDArray[Any]]] = ()
        self._epoch, self._missed = -1, 0
        self._programs: dict[tuple[PoolKey, bool, int], Any] = {}
        self._hot: dict[int, HotRows] = {}
        self._tiered = False
        self.phases = Phases()
        rows: dict[PoolKey, int] = {}
        for number, table in enumerate(tables):
            if placed[number]:
                key = PoolKey(table.dtype, table.dim)
                # Place 0 of a pool is a row of zeros; the default row of each table comes before its rows.
                at = rows.setdefault(key, 1)
                self.devices[number, slot_kernels.DEFAULT] = at
                self.devices[number, slot_kernels.FIRST] = at + 1
                rows[key] = at + 1 + placed[number]
                if placed[number] < table.rows:
                    self._hot[number] = hot = HotRows(table.rows, at + 1, placed[number])
                    self.devices[number, slot_kernels.BASE] = hot.places.ctypes.data
                    self.devices[number, slot_kernels.NOTES] = hot.notes.ctypes.data
                    self.devices[number, slot_kernels.USED] = hot.used.ctypes.data
        self.pools = {key: Pool(key, pool_size(count), count) for key, count in rows.items()}

    @property
    def sizes(self) -> Mapping[PoolKey, int]:
        return {key: pool.size for key, pool in self.pools.items()}

    @property
    def nbytes(self) -> int:
        """The bytes that the pools take on the device."""
        return sum(pool.size * row_nbytes(key) for key, pool in self.pools.items())

    @property
    def partial(self) -> bool:
        """True if a row may have no place."""
        return bool(self._hot) or self._tiered or any(pool.next >= pool.size for pool in self.pools.values())

    @contextmanager
    def reading(self) -> Iterator[Mapping[PoolKey, Pool]]:
        """Yield the pools for the length of a run that reads them."""
        self._exclusion.begin_reading()
        try:
            yield self.pools
        finally:
            self._exclusion.end_reading()

    def allocate(self) -> None:
        """Take the memory of the pools, and compile what changes them; raises whatever the device's library does."""
        for key, pool in self.pools.items():
            zeros = self._device.compile(device_modules.zeros(pool.size, key.dim, _element(key)))
            pool.rows = self._run(zeros, [], pool, False)
            if ROW_TYPES[key.dtype].scaled:
                zeros = self._device.compile(device_modules.zeros(pool.size, 1, "f32"))
                pool.scales = self._run(zeros, [], pool, True)
            for count in COPIED:
                self._program(pool, False, count)
                if pool.scales is not None:
                    self._program(pool, True, count)

    def load(self, arrays: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Copy the rows of the tables' files, by each table's buffers (Table.arrays). Those of an arena are kept."""
        self._arrays = arrays
        for number, table in enumerate(self._tables):
            if not self._placed[number]:
                continue
            table_arrays, pool = arrays[number], self.pools[PoolKey(table.dtype, table.dim)]
            first, default = (int(self.devices[number, n]) for n in (slot_kernels.FIRST, slot_kernels.DEFAULT))
            if table_arrays["default"].any():
                self._write(pool, np.array([default], np.int32), table_arrays["default"][None], None)
            if "ring" in table_arrays:
                # A memory budget is the server's and not the package's: it is known here first.
                self._placed[number], self._tiered = 0, True
                self._hot.pop(number, None)
                continue
            self._maps[number] = np.zeros(max(1, len(table_arrays["meta"])), np.int32)
            self.devices[number, slot_kernels.ARENA] = self._maps[number].ctypes.data
            scales = table_arrays["scales"]
            for at in range(0, self._placed[number], UPLOAD):
                stop = min(at + UPLOAD, self._placed[number])
                places = np.arange(first + at, first + stop, dtype=np.int32)
                self._write(pool, places, table_arrays["base"][at:stop], scales[at:stop] if len(scales) else None)

    def catch_up(self, tables: NDArray[np.int64], epoch: int) -> None:
        """Copy what changed up to a readable or previewed epoch, unless a call for it, or a later one, has done so."""
        if epoch <= self._epoch:
            return
        with self._writing:
            if epoch <= self._epoch:
                return
            for key, pool in self.pools.items():
                changes = [
                    self._changed(number, pool, tables[number])
                    for number, table in enumerate(self._tables)
                    if self._placed[number] and PoolKey(table.dtype, table.dim) == key
                ]
                places = np.concatenate([np.empty(0, np.int32), *(places for places, _, _ in changes)])
                if len(places):
                    rows = np.concatenate([rows for _, rows, _ in changes])
                    scales = np.concatenate([scales for _, _, scales in changes])
                    nbytes = self._write(pool, places, rows, scales if len(scales) else None)
                    self.counts.changed_rows += len(places)
                    self.counts.changed_nbytes += nbytes
            self._epoch = epoch

    def missed(self, count: int) -> None:
        """Count rows that the host sent because they have no place; from time to time, move those read often."""
        self.counts.host_rows += count
        self._missed += count
        if not self._hot or self._missed < TURN or not self._writing.acquire(blocking=False):
            return
        try:
            self._missed = 0
            for number, hot in self._hot.items():
                table, table_arrays = self._tables[number], self._arrays[number]
                rows, places = hot.take(self.phases)
                if len(rows):
                    scales = table_arrays["scales"][rows] if len(table_arrays["scales"]) else None
                    self._write(self.pools[PoolKey(table.dtype, table.dim)], places, table_arrays["base"][rows], scales)
                    hot.placed(rows, places)
                    self.counts.moved_rows += len(rows)
        finally:
            self._writing.release()

    def _changed(
        self, number: int, pool: Pool, descriptor: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[np.float32]]:
        """Return places, rows and scales of a table's changed slots; give new ones places while there are some."""
        arrays, mapped = self._arrays[number], self._maps[number]
        into = np.empty(COPIED[-1], np.int64)
        count = slot_kernels.changed(descriptor, len(arrays["meta"]), self._epoch, into)
        if count > len(into):
            # Slots that are written meanwhile are of an epoch that is copied later.
            into = np.empty(count, np.int64)
            count = min(count, slot_kernels.changed(descriptor, len(arrays["meta"]), self._epoch, into))
        slots = into[:count]
        new = slots[mapped[slots] == 0][: pool.size - pool.next]
        mapped[new] = np.arange(pool.next, pool.next + len(new), dtype=np.int32)
        pool.next += len(new)
        slots = slots[mapped[slots] != 0]
        scales = arrays["arena_scales"]
        return mapped[slots], arrays["arena"][slots], scales[slots] if len(scales) else scales

    def _write(
        self, pool: Pool, places: NDArray[np.int32], rows: NDArray[Any], scales: NDArray[np.float32] | None
    ) -> int:
        """Write rows to places of a pool; return the bytes that were sent."""
        nbytes, at = 0, 0
        while at < len(places):
            left = len(places) - at
            count = max((n for n in COPIED if n <= left), default=COPIED[0])
            part = slice(at, min(at + count, len(places)))
            # What is left of an update writes its last row again.
            padded = np.minimum(np.arange(count), part.stop - part.start - 1) + at
            to = self._device.keep(np.ascontiguousarray(places[padded][:, None]))
            content = self._device.keep(np.ascontiguousarray(rows[padded]))
            scaled = None if scales is None else self._device.keep(np.ascontiguousarray(scales[padded][:, None]))
            with self._exclusion.writing():
                pool.rows = self._run(self._program(pool, False, count), [pool.rows, to, content], pool, False)
                if scaled is not None:
                    program = self._program(pool, True, count)
                    pool.scales = self._run(program, [pool.scales, to, scaled], pool, True)
            nbytes += count * (4 + row_nbytes(pool.key))
            at = part.stop
        return nbytes

    def _program(self, pool: Pool, scales: bool, count: int) -> Any:
        key = pool.key, scales, count
        if key not in self._programs:
            dim, element = (1, "f32") if scales else (pool.key.dim, _element(pool.key))
            self._programs[key] = self._device.compile(device_modules.update(pool.size, dim, element, count))
        return self._programs[key]

    def _run(self, program: Any, arguments: list[Any], pool: Pool, scales: bool) -> Any:
        shape, dtype = ((pool.size, 1), np.dtype(np.float32)) if scales else (_shape(pool), _dtype(pool.key))
        handler = self._device.handler(shape, dtype)
        (result,) = program.execute_sharded(arguments).consume_with_handlers([handler])
        result.block_until_ready()
        return result


def pool_size(rows: int) -> int:
    """Return the places of a pool for so many rows of files: a part more, for rows that deltas bring."""
    return rows + max(rows // SPARE, LEAST_SPARE)


def row_nbytes(key: PoolKey) -> int:
    kind = ROW_TYPES[key.dtype]
    return key.dim * kind.dtype.itemsize + (4 if kind.scaled else 0)


def _element(key: PoolKey) -> str:
    return device_modules.ELEMENTS[key.dtype]


def _dtype(key: PoolKey) -> np.dtype[Any]:
    return ROW_TYPES[key.dtype].dtype


def _shape(pool: Pool) -> tuple[int, int]:
    return pool.size, pool.key.dim
