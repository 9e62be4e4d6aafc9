"""Rows and weights of a version as of a generation, read from its files with numpy alone: no server and no kernel.

The base is the newest snapshot on the way to the generation, or the version as it was published; the changes of the
deltas after it are gathered newest first, each key once. Memory: the changes and the one table requested.

Snapshots contain a version's tables and dense weights as of a step, whole, in a folder of the version.

    snapshots/<step>-<random>/snapshot.json       the list of its files (processor.repository.version.SnapshotManifest)
    snapshots/<step>-<random>/tables/...          as the version's own, including the index
    snapshots/<step>-<random>/dense.safetensors

A snapshot is written where no reader looks, every file is made durable, and its record commits it. A kill before that
leaves a folder that no record names, which `freshet repository prune` removes. A snapshot changes no generation:
running servers go on, and a starting one loads it and the deltas since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import Corrupt, unreadable
from freshet_serving.processor.package import (
    MAX_MANIFEST_NBYTES,
    STORED_TYPES,
    Delta,
    TableDelta,
    TableEntry,
    inside,
    read_file,
    sha256,
)
from freshet_serving.processor.repository.log.chain_record import ChainRecord
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.log.history import ChainLink
from freshet_serving.processor.repository.version import SnapshotManifest, VersionReader, table_file


def open_snapshot(version: VersionReader, record: ChainRecord) -> VersionReader:
    """Return the version as of a record's snapshot; raise Corrupt if it does not match the record."""
    try:
        data = _read(version, record)
        if sha256(data) != record.sha256 and version.storage.again(record.file):
            data = _read(version, record)
    except OSError as error:
        raise unreadable(f"snapshot {record.step}: its list of files", error) from None
    if data.nbytes != record.nbytes or sha256(data) != record.sha256:
        raise Corrupt(f"snapshot {record.step}: its list of files does not match record {record.number}")
    listed = SnapshotManifest.from_json(data.tobytes())
    if (listed.step, listed.digest) != (record.step, record.digest):
        raise Corrupt(f"snapshot {record.step}: its list of files is for another generation")
    if version.keyring.trusted and not all(entry.sha256 for entry in listed.files.values()):
        raise Corrupt(f"snapshot {record.step}: expected the SHA-256 of every file, got an unsigned list")
    return VersionReader(version.folder, listed, version.storage, version.keyring)


def _read(version: VersionReader, record: ChainRecord) -> NDArray[np.uint8]:
    path = inside(version.folder, record.file)
    version.storage.fetch(record.file, record.nbytes)
    return read_file(path, min(record.nbytes, MAX_MANIFEST_NBYTES))


Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
NO_SCALES: Float32s = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes that deltas made to a table.

    Attributes:
        keys: int64 [m], ascending.
        rows: Their rows, float32 [m, dim]; of an entity's table int32.
        removed: Removed keys (tombstones), int64 [r], ascending.
    """

    keys: Int64s
    rows: NDArray[Any]
    removed: Int64s


class VersionContents:
    """A version as of one generation of its change log."""

    def __init__(self, version: VersionReader, change_log: ChangeLog, link: ChainLink) -> None:
        """Read and verify the deltas since the base; raise Corrupt for a damaged file, Diverged for another one."""
        if link.step < change_log.history.base.step:
            change_log.reach_back()
        record = change_log.history.snapshot(link)
        self.base = version if record is None else open_snapshot(version, record)
        self.link = link
        self._verified: set[str] = set()
        since = record.step if record else 0
        deltas = []
        for older in change_log.history.back(link):
            if older.step <= since or older.record is None:
                break
            deltas.append(_in_memory(change_log.read_delta(older)))
        self.dense: dict[str, Float32s] = dict(self.base.dense())
        for delta in reversed(deltas):
            self.dense |= delta.dense
        self.changes = {t.name: _gathered(t, deltas) for t in version.manifest.tables}
        self.published_at = deltas[0].published_at if deltas else self.base.manifest.created_at
        times = [delta.event_time for delta in deltas if delta.event_time]
        self.event_time = list(times[0]) if times else list(self.base.manifest.event_time)

    def table(self, name: str) -> tuple[Int64s, NDArray[Any]]:
        """Return every key, ascending, with its served row: int64 [n], float32 [n, dim] or int32 records."""
        entry, changes = self.base.manifest.table(name), self.changes[name]
        keys, base_rows, scales = self.base_rows(name)
        rows = widened(base_rows, scales)
        unchanged = ~(np.isin(keys, changes.keys) | np.isin(keys, changes.removed))
        keys, rows = (
            np.concatenate([keys[unchanged], changes.keys]),
            np.concatenate([rows[unchanged], stored(changes.rows, entry.dtype)]),
        )
        order = np.argsort(keys)
        return keys[order], rows[order]

    def rows(self, name: str, keys: Int64s) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return which distinct keys, int64 [n], have a row, bool [n], and rows as in table(), zeros for none."""
        entry, changes = self.base.manifest.table(name), self.changes[name]
        present = np.zeros(len(keys), np.bool_)
        rows = np.zeros((len(keys), entry.dim), STORED_TYPES[entry.dtype].carried)
        base_keys, base_rows, scales = self.base_rows(name)
        at, source = _matches(keys, base_keys)
        present[at], rows[at] = True, widened(base_rows[source], scales[source] if len(scales) else scales)
        at, source = _matches(keys, changes.keys)
        present[at], rows[at] = True, stored(changes.rows[source], entry.dtype)
        removed = np.isin(keys, changes.removed)
        present[removed], rows[removed] = False, 0
        if entry.unknown_key is not None:
            # Until a delta brings it, and once it is removed, the default row is the row of unknown keys.
            imported = ~present & (keys == entry.unknown_key)
            present[imported], rows[imported] = True, entry.default or 0.0
        return present, rows

    def base_rows(self, name: str) -> tuple[Int64s, NDArray[np.generic], Float32s]:
        """Return the base's keys int64 [n], stored rows, and float32 scales [n] or [0], in file order, not copied."""
        if name not in self._verified:
            self.base.verify([table_file(name)])
            self._verified.add(name)
        arrays = self.base.tensors(table_file(name))
        return arrays["keys"], arrays["rows"], arrays.get("scales", NO_SCALES)


def widened(rows: NDArray[np.generic], scales: Float32s) -> NDArray[Any]:
    """Return stored rows as float32 [n, dim], as serving reads them (processor.kernels.conversion); records unchanged.

    Stored rows are [n, dim], bfloat16 as uint16; scales are float32 [n] for int8 rows, else [0].
    """
    if rows.dtype == np.int32:
        return np.array(rows)
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    wide = rows.astype(np.float32)
    return wide * scales[:, None] if len(scales) else wide


def narrowed(rows: Float32s, dtype: str) -> tuple[NDArray[np.generic], Float32s]:
    """Return float32 rows [n, dim] as stored, bit-identical to processor.kernels.conversion, and scales [n] or [0]."""
    if dtype == "float16":
        return rows.astype(np.float16), NO_SCALES
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(rows).view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        ), NO_SCALES
    if dtype == "int8":
        scales = np.abs(rows).max(axis=1, initial=0.0) / np.float32(127)
        steps = np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
        return np.rint(steps).astype(np.int8), scales
    return rows, NO_SCALES


def stored(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return rows, float32 [n, dim] or int32 records, after a round trip through a table's row type."""
    return widened(*narrowed(rows, dtype))


def _in_memory(delta: Delta) -> Delta:
    """Return a copy without its file: a log may have more deltas than a process may have open files."""
    tables = {
        name: TableDelta(np.array(table.keys), np.array(table.rows), np.array(table.removed))
        for name, table in delta.tables.items()
    }
    return replace(delta, tables=tables, dense={name: np.array(array) for name, array in delta.dense.items()})


def _gathered(entry: TableEntry, newest_first: Iterable[Delta]) -> TableChanges:
    dtype = STORED_TYPES[entry.dtype].carried
    keys, rows, removed_parts = [np.empty(0, np.int64)], [np.empty((0, entry.dim), dtype)], [np.empty(0, np.bool_)]
    for delta in newest_first:
        table = delta.tables.get(entry.name)
        if table is not None:
            removed = len(table.removed)
            keys += [table.keys, table.removed]
            rows += [table.rows, np.zeros((removed, entry.dim), dtype)]
            removed_parts += [np.zeros(len(table.keys), np.bool_), np.ones(removed, np.bool_)]
    all_keys, all_gone = np.concatenate(keys), np.concatenate(removed_parts)
    distinct, first = np.unique(all_keys, return_index=True)
    dead = all_gone[first]
    return TableChanges(distinct[~dead], np.concatenate(rows)[first[~dead]], distinct[dead])


def _matches(asked_keys: Int64s, stored_keys: Int64s) -> tuple[Int64s, Int64s]:
    """Return the positions of common keys in both arrays of distinct keys; only the first, small one is sorted."""
    order = np.argsort(asked_keys)
    at = np.searchsorted(asked_keys[order], stored_keys)
    at[at == len(asked_keys)] = 0
    theirs = np.flatnonzero(asked_keys[order][at] == stored_keys) if len(asked_keys) else np.empty(0, np.int64)
    return order[at[theirs]], theirs
