"""Take the requests of a user out of the recordings of a folder.

A request is the user's if one of its rows has the key, and is taken out as a whole. Recordings of a model that only
looks features up by the key do not have it, and stay.

Invariants
- A file is replaced by one without these requests, or by none if there are no others. Readers that have opened it read
  the old one to its end.
- One process at a time erases in a folder, under a lock of it, so none brings back what another has erased.
- A file that cannot be read is no recording, and stays.

Costs: the key's columns of each file of the model are read, and a file that has the user is written anew, a row group
at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from freshet_serving.processor.package import locked_folder
from freshet_serving.processor.repository import METADATA, ROW
from freshet_serving.processor.versions.erasure import ErasedUser

SUFFIX = ".erased"
"""Ends the names of new files before they take the place of old ones."""


def tells(about: Mapping[str, Any], user: ErasedUser) -> list[str]:
    """Return the columns of a recording that may hold a user's key; `about` is the file's metadata."""
    return [f["name"] for f in about["features"] if f["input"] in user.inputs]


def erase_recorded(folder: Path, user: ErasedUser) -> int:
    """Take the requests of a user out of all files of a folder; return how many there were."""
    with locked_folder(folder):
        for stale in folder.glob(f".*{SUFFIX}"):
            stale.unlink(missing_ok=True)
        return sum(_erase(path, user) for path in sorted(folder.glob("*.parquet")))


def _erase(path: Path, user: ErasedUser) -> int:
    try:
        file = pq.ParquetFile(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        # Removed to make room, or no recording.
        return 0
    with file:
        try:
            about = json.loads((file.schema_arrow.metadata or {})[METADATA])
            columns = tells(about, user) if about["model"] == user.model else []
        except (KeyError, ValueError, TypeError):
            return 0
        if not columns:
            return 0
        counts = [_requests(file.read_row_group(n, [ROW, *columns]), user)[1] for n in range(file.num_row_groups)]
        if not sum(counts):
            return 0
        temporary = path.with_name(f".{path.stem}{SUFFIX}")
        try:
            if _write(file, temporary, columns, user):
                os.replace(temporary, path)
            else:
                path.unlink(missing_ok=True)
        finally:
            temporary.unlink(missing_ok=True)
        return sum(counts)


def _write(file: pq.ParquetFile, target: Path, columns: list[str], user: ErasedUser) -> int:
    """Write the rows of others to a new file; return how many there are."""
    others = 0
    with pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for n in range(file.num_row_groups):
            table = file.read_row_group(n)
            gone, _ = _requests(table.select([ROW, *columns]), user)
            table = table.filter(pa.array(~gone))
            if len(table):
                writer.write_table(table, row_group_size=len(table))
            others += len(table)
    return others


def _requests(table: pa.Table, user: ErasedUser) -> tuple[NDArray[np.bool_], int]:
    """Return the rows of a user's requests, bool [n], and the number of these requests.

    The table has the column ROW, and those that may hold the key. A request lies in one row group.
    """
    rows = np.zeros(len(table), np.bool_)
    for name in table.column_names[1:]:
        column = table[name].combine_chunks()
        if pa.types.is_integer(column.type) and user.number is not None:
            values = column.fill_null(0).to_numpy(zero_copy_only=False)
            rows |= user.rows(values) & column.is_valid().to_numpy(zero_copy_only=False)
        elif pa.types.is_binary(column.type):
            rows |= np.asarray(pc.equal(column, user.text).fill_null(False))
    request = np.cumsum(table[ROW].to_numpy() == 0)
    of_user = np.unique(request[rows])
    return np.isin(request, of_user), len(of_user)
