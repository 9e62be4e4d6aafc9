"""Compact a version's change log into a snapshot of its newest generation: tables and dense weights.

It runs beside the processes that serve the version. Rows come out bit-identical to those that servers hold: rows of the
base are copied as they are stored, with their scales; rows of deltas are quantised once, as a server does on arrival. A
key keeps its training frequency.

Everything is durable before the record that names it, and nothing is renamed: a kill leaves the change log as it was,
and at most a folder that no record names, which `freshet repository prune` removes. Memory: the changed rows, and one
table at a time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import NotReady
from freshet_serving.processor.package import File, TableEntry, crc32, fsync_folder, map_file, sha256, write_tensors
from freshet_serving.processor.repository import (
    DENSE,
    SNAPSHOTS,
    ChainLink,
    ChangeLog,
    SnapshotManifest,
    TableChanges,
    VersionContents,
    VersionReader,
    narrowed,
    table_file,
)
from freshet_serving.processor.tables.table import packed_stored

SNAPSHOT_LIST = "snapshot.json"
MET_ONCE = 1
"""Frequency of a key that a delta added: deltas do not carry it, and training used the key at least once."""

Progress = Callable[[int, int], None]


def compact(version: VersionReader, change_log: ChangeLog, progress: Progress | None = None) -> ChainLink | None:
    """Commit a snapshot of the generation to be served; return its link, or None if it is stored whole already.

    `progress` is called with the number of files written so far and in all. Raises NotReady if the repository cannot be
    written, Conflict after a rollback meanwhile, Corrupt or Diverged for a file that is not as recorded.
    """
    change_log.look()
    change_log.may_write()
    link = change_log.history.target
    newest = change_log.history.snapshot(link)
    if link.record is None or (newest is not None and newest.digest == link.digest):
        return None
    name = f"{SNAPSHOTS}/{link.step}-{secrets.token_hex(4)}"
    folder = version.folder / name
    try:
        signed = version.keyring.signer is not None
        listed = _written(VersionContents(version, change_log, link), version.folder, name, progress, signed)
        data = listed.to_json()
        _write(folder / SNAPSHOT_LIST, lambda file: file.write(data))
        for written in (folder, folder.parent, version.folder):
            fsync_folder(written)
        version.storage.send(name)
        change_log.snapshot(link, f"{name}/{SNAPSHOT_LIST}", sha256(data), len(data))
    except OSError as error:
        with contextlib.suppress(OSError):
            # Cleanup is best effort: if nothing can be written, nothing was left behind.
            version.storage.remove(name)
        raise NotReady(f"snapshot: the repository cannot be written: {os.strerror(error.errno or 0)}") from None
    except BaseException:
        if not change_log.may_name(f"{name}/{SNAPSHOT_LIST}"):
            version.storage.remove(name)
        raise
    return link


def _written(
    contents: VersionContents, storage: Path, name: str, progress: Progress | None, signed: bool
) -> SnapshotManifest:
    """Write tables and dense weights; return the list of their files."""
    folder, tables = storage / name, contents.base.manifest.tables
    (folder / "tables").mkdir(parents=True)
    rows: dict[str, int] = {}
    files: dict[str, File] = {}
    whole = len(tables) + bool(contents.dense)
    for done, table in enumerate(tables, start=1):
        arrays = _folded(contents.base, table, contents.changes[table.name])
        rows[table.name] = len(arrays["keys"])
        files[table_file(table.name)] = _tensors(folder / table_file(table.name), arrays, signed)
        if progress is not None:
            progress(done, whole)
    fsync_folder(folder / "tables")
    if contents.dense:
        files[DENSE] = _tensors(folder / DENSE, contents.dense, signed)
        if progress is not None:
            progress(whole, whole)
    link = contents.link
    return SnapshotManifest(name, link.step, link.digest, rows, files, contents.published_at, contents.event_time)


def _folded(base: VersionReader, table: TableEntry, changes: TableChanges) -> dict[str, NDArray[Any]]:
    """Return the tensors of a table's file with its changes: remaining rows stay in order, new ones follow."""
    base.verify([table_file(table.name)])
    old = base.tensors(table_file(table.name))
    keys, frequencies = old["keys"], old.get("frequencies")
    stored, scales = narrowed(changes.rows, table.dtype)
    _, at, changed_at = np.intersect1d(keys, changes.keys, assume_unique=True, return_indices=True)
    fresh = np.ones(len(changes.keys), np.bool_)
    fresh[changed_at] = False
    remaining = ~np.isin(keys, changes.removed)
    scaled = "scales" in old

    def merged(before: NDArray[Any], changed: NDArray[Any]) -> NDArray[Any]:
        values = np.array(before)
        values[at] = changed[changed_at]
        return np.concatenate([values[remaining], changed[fresh]])

    merged_frequencies = None
    if frequencies is not None:
        added = np.full(np.count_nonzero(fresh), MET_ONCE, np.uint32)
        merged_frequencies = np.concatenate([frequencies[remaining], added])
    return packed_stored(
        np.concatenate([keys[remaining], changes.keys[fresh]]),
        merged(old["rows"], stored),
        merged(old["scales"], scales) if scaled else None,
        merged_frequencies,
    )


def _tensors(path: Path, arrays: Mapping[str, NDArray[Any]], signed: bool) -> File:
    _write(path, lambda file: write_tensors(file, arrays, {}))
    data = map_file(path)
    return File(data.nbytes, crc32(data.data), sha256(data) if signed else "")


def _write(path: Path, write: Callable[[Any], object]) -> None:
    """Write a new file, durable when the call returns; the caller must make its folder durable."""
    with open(path, "xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
