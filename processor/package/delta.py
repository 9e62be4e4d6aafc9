"""Deltas, one file each: what changed since the parent step, with its manifest in the safetensors header.

Tensors                          dense/<name>            the dense tensors that changed, whole
                                 tables/<table>/keys     int64 [m], ids upserted, distinct
                                 tables/<table>/rows     float32 [m, dim], their rows, whatever the table stores; of
                                                         a table of records (processor.package.entities) int32
                                 tables/<table>/removed  int64 [r], ids removed (tombstones), distinct, not in keys
Metadata (all strings)           format, model, version, step, parent_step, compacted ("0" | "1"),
                                 published_at, event_time (JSON [first, last] or []), events, counts (JSON),
                                 restores (a step; only in a delta that takes a part back to it),
                                 checksums (JSON: tensor -> crc32), checksum (crc32 over all the rest and over every
                                 tensor's name, dtype, shape)

Every bit of the file is covered: tensors by `checksums`, the rest by `checksum`. No part of a delta is used before all
of it has been verified. A compacted delta replaces the run parent_step+1 .. step.

DeltaRun merges consecutive deltas (compaction). Rows are whole values, never differences, so the newest row of each id
is left, or its removal. A run is staged, judged and served as one change (processor.versions.log_applier). Each row is
sorted a constant number of times: what has been gathered is merged once it is twice as large as the last result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, Corrupt, unreadable
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.tensors import (
    RECORD,
    STORED_TYPES,
    Tensors,
    all_below,
    array_crc32,
    header_checksum,
    parse_tensors,
    write_tensors,
)
from freshet_serving.processor.package.whole_files import atomic_file, open_regular, read_file

FORMAT = "freshet-delta/1"
SUFFIX = ".safetensors"
MAX_DELTA_NBYTES = 16 << 30
MAX_TIME_S = 1e12
"""Times are Unix seconds below this, which rejects milliseconds of any day since 2001."""
MAX_NATURAL = 10**18
MOST_IN_ROW = 2.0**56
"""Bound of the magnitudes in a delta's rows: squares and sums of 65,536 of them are finite in float32.

So no score is infinity minus infinity. Rows of a full version may be larger, as in imported models.
"""
MOST_READ_NBYTES = 1 << 20
_KEYS = re.compile(r"tables/.+/keys")
DeltaBytes = bytes | bytearray | NDArray[np.uint8]
"""A delta's file in memory."""


@dataclass(frozen=True, slots=True)
class TableDelta:
    """Ids upserted, int64 [m], their rows, [m, dim] of float32 (records: int32), and ids removed, int64 [r]."""

    keys: NDArray[np.int64]
    rows: NDArray[Any]
    removed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delta:
    """A verified delta.

    Attributes:
        dense: The dense tensors that changed, whole.
        published_at: Unix seconds.
        event_time: First and last training event that it carries, in Unix seconds.
        compacted: Whether it replaces the run parent_step + 1 .. step.
        checksum: Checksum of the whole header, and through it of every tensor; identifies the delta.
        restores: The earlier step that all of its rows and tensors come from; None if they are new.
    """

    model: str
    version: int
    step: int
    parent_step: int
    tables: dict[str, TableDelta]
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    published_at: float = 0.0
    event_time: tuple[float, float] | None = None
    events: int = 0
    compacted: bool = False
    checksum: str = ""
    restores: int | None = None

    @property
    def rows(self) -> int:
        return sum(len(t.keys) for t in self.tables.values())

    @property
    def removed(self) -> int:
        return sum(len(t.removed) for t in self.tables.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the delta's tensors."""
        parts = [a for t in self.tables.values() for a in (t.keys, t.rows, t.removed)]
        return sum(a.nbytes for a in (*parts, *self.dense.values()))

    def check_manifest(self) -> None:
        """Raise BadInput unless the delta's own manifest (step, times, counts) is one that a reader accepts.

        Writers call this too: what cannot be read back is never written.
        """
        for name in ("version", "step", "parent_step", "events"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < MAX_NATURAL:
                raise BadInput(f"delta: {name}: expected a whole number below 10**18, got {str(value)[:40]!r}")
        if self.step <= self.parent_step:
            raise BadInput(f"delta: expected a step above its parent {self.parent_step}, got {self.step}")
        check_time("published_at", self.published_at, 0.0)
        times = self.event_time
        if times is not None and not (isinstance(times, (tuple, list)) and len(times) == 2):
            raise BadInput(f"delta: event_time: expected two times, first and last, got {type(times).__name__}")
        for time_s in times or ():
            check_time("event_time", time_s, -MAX_TIME_S)

    def check_fits(self, manifest: Manifest) -> None:
        """Raise BadInput unless every tensor fits the model: names, shapes, distinct keys, finite values, lists."""
        tables = {t.name: t for t in manifest.tables}
        for name, table in self.tables.items():
            if name not in tables:
                raise BadInput(f"delta: table {name[:64]!r} is not one of the model's")
            if len(table.keys) or len(table.removed):
                self._check_copy(manifest, name)
            dim = tables[name].dim
            if table.rows.shape != (len(table.keys), dim):
                expected, shape = [len(table.keys), dim], list(table.rows.shape)
                raise BadInput(f"delta: table {name!r}: expected rows of shape {expected}, got {shape}")
            dtype = tables[name].dtype
            carried = STORED_TYPES[dtype].carried
            if table.rows.dtype != carried:
                raise BadInput(f"delta: table {name!r}: expected rows of {carried.name}, got {table.rows.dtype.name}")
            below = min(STORED_TYPES[dtype].below, MOST_IN_ROW)
            if dtype == RECORD:
                # Loaded with the manifest of a version that has entities.
                from freshet_serving.processor.package.entity_records import check_records

                check_records(manifest, name, table.rows)
            elif not all_below(table.rows, below):
                if not all_below(table.rows, np.inf):
                    raise BadInput(f"delta: table {name!r}: rows hold NaN or infinity")
                largest = float(np.abs(table.rows).max())
                range_text = f"numbers below {below:g} for {dtype}"
                raise BadInput(f"delta: table {name!r}: rows: expected {range_text}, got {largest:g}")
            all_keys = np.concatenate([table.keys, table.removed])
            all_keys.sort()
            if (all_keys[1:] == all_keys[:-1]).any():
                raise BadInput(f"delta: table {name!r}: an id occurs more than once among keys and removed")
        for name, tensor in self.dense.items():
            if name not in manifest.dense:
                raise BadInput(f"delta: dense tensor {name[:64]!r} is not one of the model's")
            if list(tensor.shape) != manifest.dense[name]:
                expected, shape = manifest.dense[name], list(tensor.shape)
                raise BadInput(f"delta: dense tensor {name!r}: expected shape {expected}, got {shape}")
            if not all_below(tensor, np.inf):
                raise BadInput(f"delta: dense tensor {name!r} holds NaN or infinity")

    def _check_copy(self, manifest: Manifest, table: str) -> None:
        """Raise BadInput if the model reads a table's rows in a second place that this delta does not change."""
        weight = manifest.copies.get(table)
        if weight is None:
            return
        manifest.check_reachable(table)
        if weight not in self.dense:
            raise BadInput(
                f"delta: table {table!r} changes without dense weight {weight!r}, which holds the same rows: expected "
                "both in one delta"
            )


def check_time(name: str, time_s: float, least_s: float) -> None:
    """Raise BadInput unless a time is in Unix seconds, from `least_s` to below MAX_TIME_S."""
    if isinstance(time_s, bool) or not isinstance(time_s, (int, float, np.integer, np.floating)):
        raise BadInput(f"delta: {name}: expected seconds since 1970 as a number, got {type(time_s).__name__}")
    if not least_s <= time_s < MAX_TIME_S:
        hint = "; milliseconds?" if MAX_TIME_S <= time_s < 1e3 * MAX_TIME_S else ""
        raise BadInput(f"delta: {name}: expected seconds since 1970, got {str(time_s)[:24]}{hint}")


def write_delta(path: Path, delta: Delta) -> None:
    """Write the delta's file by atomic rename, durable when the call returns.

    In a version's folder the change log must adopt it (processor.repository.log.change_log).
    """
    with atomic_file(path) as file:
        stream_delta(file, delta)


def stream_delta(file: BinaryIO, delta: Delta) -> None:
    """Write the bytes of a delta's file; raise BadInput, with nothing written, if parse_delta() would reject it."""
    delta.check_manifest()
    arrays: dict[str, NDArray[Any]] = {}
    for name, table in delta.tables.items():
        arrays[f"tables/{name}/keys"] = _typed(table.keys, np.int64, 1, f"tables/{name}/keys")
        arrays[f"tables/{name}/removed"] = _typed(table.removed, np.int64, 1, f"tables/{name}/removed")
    for name, table in delta.tables.items():
        arrays[f"tables/{name}/rows"] = _rows(table.rows, f"tables/{name}/rows")
    for name, tensor in delta.dense.items():
        arrays[f"dense/{name}"] = _typed(tensor, np.float32, None, f"dense/{name}")
    metadata = {
        "format": FORMAT,
        "model": delta.model,
        "version": str(delta.version),
        "step": str(delta.step),
        "parent_step": str(delta.parent_step),
        "compacted": str(int(delta.compacted)),
        "published_at": repr(float(delta.published_at)),
        "event_time": json.dumps([float(time_s) for time_s in delta.event_time or ()]),
        "events": str(delta.events),
        "counts": json.dumps({"rows": delta.rows, "removed": delta.removed, "dense": len(delta.dense)}),
        "checksums": json.dumps({name: array_crc32(a) for name, a in arrays.items()}),
    }
    if delta.restores is not None:
        metadata["restores"] = str(delta.restores)
    metadata["checksum"] = header_checksum(metadata, arrays)
    write_tensors(file, arrays, metadata)


def read_delta(path: Path) -> Delta:
    """Read and verify a delta file; the result is what was verified, whatever happens to the file later."""
    return parse_delta(read_delta_file(path))


def read_delta_file(path: Path, max_nbytes: int = MAX_DELTA_NBYTES) -> NDArray[np.uint8]:
    """Return the bytes of a delta file; Corrupt if it is too large or unreadable, NotReady if only for now."""
    try:
        return read_file(path, max_nbytes)
    except OSError as error:
        raise unreadable(path.name, error) from None


def rows_of_file(path: Path) -> int:
    """Return how many rows a delta's file changes, from its header alone and unverified; raise Corrupt."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MOST_READ_NBYTES)))
        keys = [entry["shape"] for name, entry in header.items() if _KEYS.fullmatch(name)]
        return sum(int(rows) for (rows,) in keys)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Corrupt(f"{path.name}: expected a delta header") from None


def parse_delta(data: DeltaBytes) -> Delta:
    """Verify a delta file's bytes and return the delta; raise Corrupt unless they are exactly what a trainer wrote."""
    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    tensors = parse_tensors(buffer, "delta")
    meta = tensors.metadata
    if meta.get("format") != FORMAT:
        actual = f"got {meta['format'][:40]!r}" if "format" in meta else "got none"
        raise Corrupt(f"delta: expected format {FORMAT!r}, {actual}")
    if meta.get("checksum") != header_checksum(meta, tensors.arrays):
        raise Corrupt("delta: the header does not match its checksum")
    return _parse_verified(tensors)


def _parse_verified(tensors: Tensors) -> Delta:
    meta = tensors.metadata
    checksums = _json(meta, "checksums", dict)
    if checksums.keys() != tensors.arrays.keys():
        raise Corrupt("delta: expected a checksum for each tensor")
    for name, array in tensors.arrays.items():
        if array_crc32(array) != checksums[name]:
            raise Corrupt(f"delta: tensor {name[:64]!r} does not match its checksum")
    tables: dict[str, dict[str, NDArray[Any]]] = {}
    dense: dict[str, NDArray[np.float32]] = {}
    for name, array in tensors.arrays.items():
        kind, _, rest = name.partition("/")
        table, _, part = rest.partition("/")
        if kind == "dense" and rest:
            dense[rest] = _typed(array, np.float32, None, name)
        elif kind == "tables" and part == "rows":
            tables.setdefault(table, {})[part] = _rows(array, name)
        elif kind == "tables" and part in ("keys", "removed"):
            tables.setdefault(table, {})[part] = _typed(array, np.int64, 1, name)
        else:
            raise Corrupt(f"delta: tensor: expected dense/..., or tables/.../keys, rows or removed, got {name[:64]!r}")
    for name, parts in tables.items():
        if parts.keys() != {"keys", "rows", "removed"}:
            raise Corrupt(
                f"delta: table {name[:64]!r}: expected keys, rows and removed, got {', '.join(sorted(parts))}"
            )
    times = _json(meta, "event_time", list)
    if len(times) not in (0, 2) or not all(type(t) in (int, float) and abs(t) < 1e300 for t in times):
        raise Corrupt("delta: event_time: expected [] or [first, last]")
    delta = Delta(
        model=meta.get("model", ""),
        version=_natural(meta, "version"),
        step=_natural(meta, "step"),
        parent_step=_natural(meta, "parent_step"),
        tables={name: TableDelta(**parts) for name, parts in tables.items()},
        dense=dense,
        published_at=_number(meta, "published_at"),
        event_time=(times[0], times[1]) if times else None,
        events=_natural(meta, "events"),
        compacted=_natural(meta, "compacted") == 1,
        checksum=meta["checksum"],
        restores=_natural(meta, "restores") if "restores" in meta else None,
    )
    try:
        delta.check_manifest()
    except BadInput as error:
        raise Corrupt(str(error)) from None
    return replace(delta, event_time=(float(times[0]), float(times[1]))) if times else delta


def _typed(array: NDArray[Any], dtype: type, rank: int | None, name: str) -> NDArray[Any]:
    if array.dtype != dtype or (rank is not None and array.ndim != rank):
        expected = f"{np.dtype(dtype).name} of rank {rank}" if rank else np.dtype(dtype).name
        raise Corrupt(f"delta: tensor {name[:64]!r}: expected {expected}, got {array.dtype.name} of rank {array.ndim}")
    return array


def _rows(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return rows of either type; Delta.check_fits() compares it with the table's."""
    return _typed(array, np.int32 if array.dtype == np.int32 else np.float32, 2, name)


def _natural(meta: Mapping[str, str], key: str) -> int:
    text = meta.get(key, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Corrupt(f"delta: {key}: expected a whole number, got {text[:40]!r}")
    return int(text)


def _number(meta: Mapping[str, str], key: str) -> float:
    try:
        value = float(meta.get(key, ""))
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise Corrupt(f"delta: {key}: expected a number, got {meta.get(key, '')[:40]!r}")
    return value


def _json(meta: Mapping[str, str], key: str, kind: type) -> Any:
    try:
        value = json.loads(meta.get(key, ""))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise Corrupt(f"delta: {key}: expected JSON {kind.__name__}")
    return value


FOLD_ROWS = 1 << 16
"""At least this many rows are kept unmerged."""


class DeltaRun:
    """Consecutive deltas of one version, each applying to the one before; at least one is added before folded()."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._gathered = self._folded = 0

    def add(self, delta: Delta) -> None:
        """Add the next delta, which has passed Delta.check_fits()."""
        self._deltas.append(delta)
        self._gathered += delta.rows + delta.removed
        if len(self._deltas) > 1 and self._gathered > FOLD_ROWS + 2 * self._folded:
            self._deltas = [folded(self._deltas)]
            self._gathered = self._folded = self._deltas[0].rows + self._deltas[0].removed

    def folded(self) -> Delta:
        """Return the run as one delta; a run of one is that very delta."""
        return folded(self._deltas)


def folded(deltas: Sequence[Delta]) -> Delta:
    """Merge consecutive deltas into one that leads from the first one's parent to the last one's step.

    Its times and checksum are the newest's, its events the sum of all.
    """
    first, newest = deltas[0], deltas[-1]
    if len(deltas) == 1:
        return newest
    names = dict.fromkeys(name for delta in deltas for name in delta.tables)
    tables = {name: _folded([d.tables[name] for d in deltas if name in d.tables]) for name in names}
    dense: dict[str, NDArray[np.float32]] = {}
    for delta in deltas:
        dense |= delta.dense
    return replace(
        newest,
        parent_step=first.parent_step,
        compacted=first.compacted,
        tables=tables,
        dense=dense,
        event_time=next((d.event_time for d in reversed(deltas) if d.event_time), None),
        events=sum(delta.events for delta in deltas),
        restores=None,
    )


def _folded(changes: Sequence[TableDelta]) -> TableDelta:
    if len(changes) == 1:
        return changes[0]
    newest_first = changes[::-1]
    keys = np.concatenate([part for c in newest_first for part in (c.keys, c.removed)])
    # Position of each key's row among all rows, -1 for a removed key.
    at, total = [], 0
    for change in newest_first:
        at.append(np.arange(total, total + len(change.keys)))
        at.append(np.full(len(change.removed), -1))
        total += len(change.keys)
    # Of equal keys unique() returns the first, which is the newest.
    unique, first = np.unique(keys, return_index=True)
    rows_at = np.concatenate(at)[first]
    has_row = rows_at >= 0
    rows = np.concatenate([change.rows for change in newest_first])[rows_at[has_row]]
    return TableDelta(unique[has_row], rows, unique[~has_row])
