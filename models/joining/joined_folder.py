"""The folder that a join writes: labelled rows as Parquet files, each with the state of the join as of that file.

    0000000001.parquet      the columns of the recording, freshet.label, freshet.weight, freshet.late: rows whose
    0000000002.parquet      window has ended and, where freshet.late, rows once more that became positives late
    _join/                  journals of both streams and the lock; windows/<day>.jsonl, the report

Invariants
- One writer: it holds the lock of _join/lock, which ends with its process.
- A file appears whole under the next number, by one rename, and its schema's metadata, under "freshet.join", is the
  state that this file completes. So output and state are one: the newest file says where a join goes on, and nothing is
  in a file twice or in none, wherever a kill falls.
- Files are never changed. Old ones may be deleted by whoever has learned them: a correction that needs one counts as
  too late. The newest stays, or the join begins anew.

Refused: a state file beside the rows (two renames, and a kill between them); appending to files (a reader would have to
know how far they are whole).
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

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package import atomic_file

STATE = b"freshet.join"
LABEL, WEIGHT, LATE = "freshet.label", "freshet.weight", "freshet.late"
BOOKS = "_join"
GROUP_ROWS, GROUP_NBYTES = 4096, 8 << 20
"""Small ones: a correction reads one for a row."""
ROWS_NBYTES = 64 << 20
"""Of rows in memory: a list that a request sent once is in each of its rows here, so rows of few bytes can be many."""

_NAME = re.compile(r"(\d{10})\.parquet")


class JoinedFolder:
    """The rows that a join has emitted, and its state."""

    def __init__(self, folder: Path) -> None:
        """Takes the folder for this process. Raises BadInput where another one has it or it cannot be had."""
        self.folder, self.books = folder, folder / BOOKS
        try:
            self.books.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.books / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            for place in (self.folder, self.books):
                for stale in place.glob(".*.tmp"):
                    stale.unlink()
        except OSError as error:
            raise BadInput(f"--out: a folder that can be written wanted: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadInput("--out: a folder that no other join writes to wanted") from None
        self._newest = max(self._numbers(), default=0)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def next(self) -> int:
        """The number of the file that comes next."""
        return self._newest + 1

    def state(self) -> dict[str, Any] | None:
        """The state of the newest file; None where nothing has been emitted. Raises Corrupt."""
        return self.state_of(self._newest) if self._newest else None

    def state_of(self, number: int) -> dict[str, Any]:
        """The state that a file completes; raises Corrupt."""
        try:
            said = json.loads((pq.read_schema(self._path(number)).metadata or {})[STATE])
        except (OSError, KeyError, ValueError, RecursionError, pa.ArrowException):
            raise Corrupt(f"{self._path(number).name}: a file of a join wanted") from None
        if not isinstance(said, dict):
            raise Corrupt(f"{self._path(number).name}: the state of a join wanted")
        return said

    def write(self, rows: pa.Table, state: dict[str, Any]) -> int:
        """Emits rows and commits the state with them; returns the file's number. Raises OSError."""
        metadata = {**(rows.schema.metadata or {}), STATE: json.dumps(state, separators=(",", ":")).encode()}
        with atomic_file(self._path(self.next)) as file:
            group_rows = max(1, min(GROUP_ROWS, GROUP_NBYTES * len(rows) // max(1, rows.nbytes)))
            pq.write_table(rows.replace_schema_metadata(metadata), file, compression="zstd", row_group_size=group_rows)
        self._newest += 1
        return self._newest

    def newest_first(self) -> Iterator[int]:
        """The numbers of the files that are there."""
        yield from sorted(self._numbers(), reverse=True)

    def columns(self, number: int, names: Sequence[str]) -> pa.Table:
        """These columns of a file, all rows; raises Corrupt."""
        with _sound(self._path(number).name):
            return pq.read_table(self._path(number), columns=list(names), partitioning=None).select(list(names))

    def recorded(self, number: int, rows: Sequence[int]) -> pa.Table | None:
        """Rows of a file in this order, as they were recorded; None where the file is gone. Raises Corrupt."""
        try:
            found = rows_of(self._path(number), rows)
        except FileNotFoundError:
            return None
        metadata = {key: value for key, value in (found.schema.metadata or {}).items() if key != STATE}
        with _sound(self._path(number).name):
            return found.drop_columns([LABEL, WEIGHT, LATE]).replace_schema_metadata(metadata)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010}.parquet"

    def _numbers(self) -> list[int]:
        names = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return [int(name[1]) for name in names if name]


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """What a library says of a file that is not as it was written, as Corrupt."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise Corrupt(f"{name}: a file of a join wanted, got {type(error).__name__}") from None


def labelled(rows: pa.Table, labels: np.ndarray, weights: np.ndarray, late: np.ndarray) -> pa.Table:
    """Recorded rows with what they are to be learned as. labels, weights: [n]; late: bool [n]."""
    rows = rows.append_column(LABEL, pa.array(labels.astype(np.float32)))
    rows = rows.append_column(WEIGHT, pa.array(weights.astype(np.float32)))
    return rows.append_column(LATE, pa.array(late))


def rows_of(path: Path, rows: Sequence[int]) -> pa.Table:
    """Read rows of a file of a join in this order; only their row groups are read, one at a time.

    Args:
        path: Of the file.
        rows: Their numbers in it.

    Returns:
        The rows as they were emitted.

    Raises:
        FileNotFoundError: The file is gone.
        Corrupt: It cannot be read, or has no such row.
    """
    with _sound(path.name), pq.ParquetFile(path, pre_buffer=False) as file:
        counts = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        order = np.argsort(np.asarray(rows, np.int64), kind="stable")
        wanted = np.asarray(rows, np.int64)[order]
        groups = np.searchsorted(starts, wanted, side="right") - 1
        parts = [
            file.read_row_group(group).take(pa.array(wanted[groups == group] - starts[group]))
            for group in np.unique(groups).tolist()
        ]
        return pa.concat_tables(parts).combine_chunks().take(pa.array(np.argsort(order)))


def seconds(times: pa.ChunkedArray) -> np.ndarray:
    """Timestamps as Unix seconds, float64 [n]."""
    micros = pc.cast(times, pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    return np.asarray(micros / 1e6)
