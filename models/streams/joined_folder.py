"""Write the output folder of a join: labelled rows as Parquet files, each with the state of the join as of that file.

    0000000001.parquet      the recorded columns, freshet.label, freshet.weight, freshet.late: rows whose window has
    0000000002.parquet      ended and, with freshet.late, rows emitted again because they became positives late.
                            What several rows share is in the first of them and null in those that follow
                            (models.data.broadcast_columns); each row group begins with all of its values
    _join/                  journals of both streams and the lock; windows/<day>.jsonl, the report

Invariants
- One writer: it holds the lock of _join/lock, which is released when its process ends.
- A file appears whole under the next number, by one rename. The metadata of its schema holds, under "freshet.join", the
  state that this file completes. So the newest file defines where a join resumes, and every row is in exactly one file,
  whenever a kill happens.
- Files never change. Old ones may be deleted after training has consumed them; a correction that needs one then counts
  as too late. The newest file must stay, or the join starts from the beginning.

Rejected: a state file beside the rows (two renames, with a possible kill between them); appending to files (a reader
would have to know how much of them is complete).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from freshet_serving.models.data.broadcast_columns import filled, take_once
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import atomic_file

STATE = b"freshet.join"
LABEL, WEIGHT, LATE = "freshet.label", "freshet.weight", "freshet.late"
BOOKS = "_join"
GROUP_ROWS, GROUP_NBYTES = 4096, 8 << 20
"""Small row groups: a correction reads a whole group for one row."""
ROWS_NBYTES = 64 << 20
"""Limit of decoded rows in memory: a small file may decode to many bytes."""

_NAME = re.compile(r"(\d{10})\.parquet")


class JoinedFolder:
    def __init__(self, folder: Path) -> None:
        """Create and lock the folder; raise BadInput if it is not writable or another join holds it."""
        self.folder, self.books = folder, folder / BOOKS
        try:
            self.books.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.books / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            for place in (self.folder, self.books):
                for stale in place.glob(".*.tmp"):
                    stale.unlink()
        except OSError as error:
            raise BadInput(f"--out: cannot write to the folder: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadInput("--out: another join is writing to this folder") from None
        self._newest = max(self._numbers(), default=0)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def next(self) -> int:
        return self._newest + 1

    def state(self) -> dict[str, Any] | None:
        """Return the state of the newest file; None if nothing has been emitted. Raises Corrupt."""
        return self.state_of(self._newest) if self._newest else None

    def state_of(self, number: int) -> dict[str, Any]:
        """Return the state that a file completes. Raises Corrupt."""
        try:
            state = json.loads((pq.read_schema(self._path(number)).metadata or {})[STATE])
        except (OSError, KeyError, ValueError, RecursionError, pa.ArrowException):
            raise Corrupt(f"{self._path(number).name}: expected a file of a join") from None
        if not isinstance(state, dict):
            raise Corrupt(f"{self._path(number).name}: expected the state of a join")
        return state

    def write(self, rows: pa.Table, state: dict[str, Any]) -> int:
        """Write rows, in the form of broadcast_columns.take_once, and the state that they complete; raises OSError."""
        metadata = {**(rows.schema.metadata or {}), STATE: json.dumps(state, separators=(",", ":")).encode()}
        with atomic_file(self._path(self.next)) as file:
            group_rows = max(1, min(GROUP_ROWS, GROUP_NBYTES * len(rows) // max(1, rows.nbytes)))
            with pq.ParquetWriter(file, rows.schema.with_metadata(metadata), compression="zstd") as writer:
                for first in range(0, len(rows), group_rows):
                    group = take_once(rows, np.arange(first, min(first + group_rows, len(rows))))
                    writer.write_table(group.replace_schema_metadata(metadata), row_group_size=group_rows)
        self._newest += 1
        return self._newest

    def newest_first(self) -> Iterator[int]:
        yield from sorted(self._numbers(), reverse=True)

    def columns(self, number: int, names: Sequence[str]) -> pa.Table:
        """Return all rows of columns of a file, each with its value. Raises Corrupt."""
        with _sound(self._path(number).name):
            table = pq.read_table(self._path(number), columns=list(names), partitioning=None)
            return pa.table({name: filled(table, name) for name in names})

    def recorded(self, number: int, rows: Sequence[int]) -> pa.Table | None:
        """Return rows of a file as they were recorded, in this order; None if the file is gone. Raises Corrupt.

        They have the form of models.data.broadcast_columns.take_once.
        """
        try:
            table = rows_of(self._path(number), rows)
        except FileNotFoundError:
            return None
        metadata = {key: value for key, value in (table.schema.metadata or {}).items() if key != STATE}
        with _sound(self._path(number).name):
            return table.drop_columns([LABEL, WEIGHT, LATE]).replace_schema_metadata(metadata)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010}.parquet"

    def _numbers(self) -> list[int]:
        names = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return [int(name[1]) for name in names if name]


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """Turn library errors about a damaged file into Corrupt."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"{name}: expected a file of a join, got {type(error).__name__}") from None


def labelled(rows: pa.Table, labels: np.ndarray, weights: np.ndarray, late: np.ndarray) -> pa.Table:
    """Append columns of labels [n], weights [n] and late [n] (bool) to recorded rows."""
    rows = rows.append_column(LABEL, pa.array(labels.astype(np.float32)))
    rows = rows.append_column(WEIGHT, pa.array(weights.astype(np.float32)))
    return rows.append_column(LATE, pa.array(late))


def rows_of(path: Path, rows: Sequence[int]) -> pa.Table:
    """Read rows of a file of a join in this order; only their row groups are read, one at a time.

    They have the form of models.data.broadcast_columns.take_once. Raises FileNotFoundError, Corrupt.
    """
    with _sound(path.name), pq.ParquetFile(path, pre_buffer=False) as file:
        counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        order = np.argsort(np.asarray(rows, np.int64), kind="stable")
        ascending = np.asarray(rows, np.int64)[order]
        groups = np.searchsorted(starts, ascending, side="right") - 1
        parts = [
            take_once(file.read_row_group(group), ascending[groups == group] - starts[group])
            for group in np.unique(groups).tolist()
        ]
        return take_once(pa.concat_tables(parts), np.argsort(order))


def seconds(times: pa.ChunkedArray) -> np.ndarray:
    """Convert timestamps to Unix seconds, float64 [n]."""
    micros = pc.cast(times, pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    return np.asarray(micros / 1e6)
