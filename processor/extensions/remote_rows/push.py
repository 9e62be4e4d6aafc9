"""Copy a version's tables into a row store, and remove them from it. Both are idempotent.

push() writes a marker "pushing", every bucket, then the marker "complete"; a server accepts a table only from a
complete marker that agrees with its manifest in everything, checksum included. So a push may be killed at any point and
repeated; a complete one is not written again. drop() sets the marker to "pushing" first: no server loads a table that
is being removed, and a drop that was killed can be repeated. A server that still serves the version finds buckets
missing, which counts as failures, not as unseen ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from freshet_serving.processor.errors import Conflict, Corrupt
from freshet_serving.processor.extensions.remote_rows.layout import (
    COMPLETE,
    MAX_MARKER_NBYTES,
    PUSHING,
    StoredTable,
    marker_key,
    parse_marker,
)
from freshet_serving.processor.package import ROW_TYPES
from freshet_serving.processor.repository import VersionReader, table_file
from freshet_serving.processor.tables.row_store import RowStore

Progress = Callable[[str, int, int], None]
"""Called with the table, the buckets done and the buckets in all."""


def push(
    reader: VersionReader, tables: Sequence[str], store: RowStore, progress: Progress = lambda *_: None
) -> list[StoredTable]:
    """Copy tables into the store, all if none is named; return those that were not complete already.

    Raises Corrupt if a file does not match its checksum, Conflict if the store holds another upload of the version.
    """
    names = list(tables) or [t.name for t in reader.manifest.embeddings]
    stored_tables = [StoredTable.of(reader.manifest, name) for name in names]
    return [table for table in stored_tables if _push(reader, table, store, progress)]


def _push(reader: VersionReader, table: StoredTable, store: RowStore, progress: Progress) -> bool:
    data = store.read(table.marker_key, MAX_MARKER_NBYTES)
    if data is not None:
        stored, state = parse_marker(data)
        if (stored, state) == (table, COMPLETE):
            return False
        if state == COMPLETE:
            raise Conflict(f"{table.name}: the row store holds other rows under this version; drop them first")
        if stored != table:
            _delete(stored, store)
    file = table_file(table.table)
    reader.verify([file])
    arrays = reader.tensors(file)
    keys, rows = arrays.get("keys"), arrays.get("rows")
    scales, kind = arrays.get("scales", np.empty(0, np.float32)), ROW_TYPES[table.dtype]
    if keys is None or rows is None or keys.dtype != np.int64 or keys.shape != (table.rows,):
        raise Corrupt(f"table {table.table!r}: expected {table.rows} int64 keys and their rows")
    if rows.dtype != kind.dtype or rows.shape != (table.rows, table.dim):
        raise Corrupt(f"table {table.table!r}: expected rows {[table.rows, table.dim]} of {table.dtype}")
    if scales.dtype != np.float32 or scales.shape != (table.rows if kind.scaled else 0,):
        raise Corrupt(f"table {table.table!r}: expected a float32 scale for each row of {table.dtype}")
    store.write({table.marker_key: table.marker(PUSHING)})
    done = 0
    for chunk in table.pack(keys, rows, scales):
        store.write(chunk)
        done += len(chunk)
        progress(table.table, done, table.buckets)
    store.write({table.marker_key: table.marker(COMPLETE)})
    return True


def drop(model: str, version: int, tables: Sequence[str], store: RowStore) -> list[StoredTable]:
    """Remove tables of a version from the store; return those that were there."""
    dropped = []
    for name in tables:
        data = store.read(marker_key(model, version, name), MAX_MARKER_NBYTES)
        if data is None:
            continue
        table, _ = parse_marker(data)
        if (table.model, table.version, table.table) != (model, version, name):
            raise Corrupt("the row store's marker names another table")
        store.write({table.marker_key: table.marker(PUSHING)})
        _delete(table, store)
        store.delete([table.marker_key])
        dropped.append(table)
    return dropped


def _delete(table: StoredTable, store: RowStore) -> None:
    for keys in table.all_keys():
        store.delete(keys)
