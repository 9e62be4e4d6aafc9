"""A copy of a followed table on the trainer's disk: what a run that starts knows of it without reading it all again.

One safetensors file, replaced by rename, with checksums over all of it. A damaged one counts as none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.keyed_rows import KeyedRows
from freshet_serving.models.data.source import Field
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import (
    array_crc32,
    atomic_file,
    header_checksum,
    map_file,
    parse_tensors,
    write_tensors,
)

FORMAT = "freshet-table/1"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The content of a copy: marks belong to `identity`, drawn at random when the table was first read.

    `read` is the state of the file whose content it is; [] for a stream.
    """

    identity: str
    rows: KeyedRows
    mark: int
    read: list[int]


def write_copy(path: Path, key: Field, copied: TableCopy) -> None:
    """Write a copy, durably; raises OSError."""
    rows = copied.rows
    columns = rows.take(np.arange(len(rows)))
    arrays = _flat("key", rows.keys) | {"marks": rows.marks, "gone": rows.gone.astype(np.uint8)}
    if rows.times is not None:
        # As integers, which the format has.
        arrays["times"] = np.ascontiguousarray(rows.times, np.float64).view(np.int64)
    for name, column in columns.items():
        arrays |= _flat(f"columns/{name}", column)
    metadata = {
        "format": FORMAT,
        "identity": copied.identity,
        "mark": str(copied.mark),
        "read": json.dumps(copied.read),
        "columns": _described(key, rows.fields, rows.times is not None),
        "checksums": json.dumps({name: array_crc32(array) for name, array in arrays.items()}),
    }
    metadata["checksum"] = header_checksum(metadata, arrays)
    with atomic_file(path) as file:
        write_tensors(file, arrays, metadata)


def read_copy(path: Path, key: Field, fields: tuple[Field, ...], timed: bool) -> TableCopy | None:
    """Read a copy; None if there is none, or one of other columns."""
    if not path.exists():
        return None
    try:
        tensors = parse_tensors(map_file(path), path.name)
        metadata, arrays = tensors.metadata, tensors.arrays
        sound = metadata.get("format") == FORMAT and metadata.get("checksum") == header_checksum(metadata, arrays)
        if not sound or metadata["columns"] != _described(key, fields, timed):
            return None
        checksums = json.loads(metadata["checksums"])
    except Corrupt:
        return None
    if any(array_crc32(array) != checksums.get(name) for name, array in arrays.items()):
        return None
    # Not views of the file, which is replaced.
    copies = {name: array.copy() for name, array in arrays.items()}
    columns = {f.name: _column(f"columns/{f.name}", copies) for f in fields}
    times = copies["times"].view(np.float64) if timed else None
    rows = KeyedRows(fields, _column("key", copies), columns, times, copies["marks"], copies["gone"].astype(np.bool_))
    return TableCopy(metadata["identity"], rows, int(metadata["mark"]), json.loads(metadata["read"]))


def _described(key: Field, fields: tuple[Field, ...], timed: bool) -> str:
    return json.dumps([[f.name, f.kind] for f in (key, *fields)] + [timed])


def _flat(name: str, column: Column) -> Arrays:
    if isinstance(column, Ragged):
        return {f"{name}/splits": column.row_splits, **_flat(f"{name}/values", column.values)}
    if isinstance(column, Strings):
        first, last = int(column.offsets[0]), int(column.offsets[-1])
        return {f"{name}/data": column.data[first:last], f"{name}/offsets": column.offsets - first}
    return {f"{name}/plain": column}


def _column(name: str, arrays: Arrays) -> Column:
    """Invert _flat."""
    if f"{name}/splits" in arrays:
        values: Any = _column(f"{name}/values", arrays)
        return Ragged(values, arrays[f"{name}/splits"])
    if f"{name}/offsets" in arrays:
        return Strings(arrays[f"{name}/data"], arrays[f"{name}/offsets"])
    plain: Column = arrays[f"{name}/plain"]
    return plain
