"""Read a user's own table (Parquet, CSV or TFRecord; a file, a folder or a glob), streaming only the columns needed.

Rows come in the order of files (by name, part-2 before part-10) and of rows in them. With a time column they must be
sorted by it, since deltas are cut along it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshet_serving.models.data import arrow
from freshet_serving.models.data.canonical import CanonicalColumns, join_parts
from freshet_serving.models.data.decoding import IsolatedParquetFile
from freshet_serving.models.data.files import CsvFile, DataFile, FileChunk, ParquetFile, RowNames, find_files, nbytes_of
from freshet_serving.models.data.folder_columns import with_folder_columns
from freshet_serving.models.data.formats import CSV_SUFFIXES, PARQUET_SUFFIXES, TFRECORD_SUFFIXES, DataConfig
from freshet_serving.models.data.object_files import DataPath
from freshet_serving.models.data.ordered_prefetch import Task, ordered_prefetch
from freshet_serving.models.data.source import Batch, Field, Schema, check_position
from freshet_serving.processor.cores import available
from freshet_serving.processor.errors import BadInput

Chunk = tuple[list[pa.Array], RowNames]
"""Canonical columns, and the names of their rows."""

AHEAD_NBYTES = 16 << 20
"""Bytes of columns that a reading thread may be ahead of the consumer."""
MOST_THREADS = 4
SMALL_NBYTES = 4 << 20
"""Parquet files below this size are decoded in a process with a memory limit: kilobytes may become gigabytes."""
VALUE_NBYTES = 4
"""Least bytes of a value in memory."""
HELD_NBYTES, HELD_RATIO = 256 << 20, 256
"""A table that is kept whole may take so many bytes, or so many times those of its files."""
BATCH_NBYTES = 1 << 30
"""A batch may take so many bytes: a list that a recorded request sent once is in each of the request's rows."""


class TableSource:
    """Rows of data files of one layout, as batches that do not depend on the number of threads.

    Pieces of files (a row group of Parquet, a whole file of text) are read, checked and cast on threads, in order. At
    most AHEAD_NBYTES of each are queued, so memory does not depend on the size of row groups or files.
    """

    def __init__(self, files: Sequence[DataFile], schema: Schema, csv: bool, threads: int = 0) -> None:
        """Open files, in stream order, `csv` if cells are text; BadInput if a column does not fit, or all are empty.

        `threads` is 1 for the caller's own, 0 for one a core, up to MOST_THREADS.
        """
        self._files, self.schema = files, schema
        self._columns = CanonicalColumns(schema, csv)
        self._threads = threads or min(MOST_THREADS, len(available()))
        self._read_types(files[0])
        if all(file.empty for file in files):
            raise BadInput(f"{files[0].name}: expected rows, got an empty table")

    def bounded(self) -> Iterator[Batch]:
        """Yield all rows, for a caller that keeps them; BadInput also if they take more memory than their files may."""
        most_nbytes = max(HELD_NBYTES, HELD_RATIO * sum(file.nbytes for file in self._files))
        held, columns, start = 0, len(self._columns.wanted), 0
        rows = sum(file.count_rows() for file in self._files if isinstance(file, ParquetFile))
        if rows * columns * VALUE_NBYTES > most_nbytes:
            raise self._too_large(most_nbytes, f"{rows:,} rows of {columns} columns")
        with closing(ordered_prefetch(self._tasks(0), self._threads, _nbytes, AHEAD_NBYTES)) as chunks:
            for part in self._in_order_of_time(chunks):
                held += sum(array.nbytes for array in part)
                if held > most_nbytes:
                    raise self._too_large(most_nbytes, "more")
                yield self._columns.batch(part, start)
                start += len(part[0])

    def _too_large(self, most_nbytes: int, got: str) -> BadInput:
        return BadInput(
            f"{self._files[0].name}: expected a table of at most {most_nbytes >> 20:,} MiB in memory ("
            f"{HELD_RATIO} times its files, or {HELD_NBYTES >> 20} MiB), got {got}"
        )

    def _read_types(self, file: DataFile) -> dict[str, pa.DataType]:
        """Return the Arrow type to read each column as; raise BadInput if one does not fit its kind."""
        types, time = file.types([name for name, _ in self._columns.wanted]), self.schema.time
        if time and isinstance(file, CsvFile) and pa.types.is_string(types[time]) and (why := file.odd_time(time)):
            raise BadInput(why)
        return self._columns.check(types)

    @property
    def recorded(self) -> frozenset[str]:
        """The inputs of requests that all files have, each as it was used, if they are recordings."""
        files = [file.recorded if isinstance(file, ParquetFile) else frozenset() for file in self._files]
        return frozenset.intersection(*files)

    def count_rows(self) -> int:
        return sum(f.count_rows() for f in self._files)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches; BadInput errors name the column and the row, counted from 0 within its file."""
        check_position(rows, start)
        chunks = ordered_prefetch(self._tasks(start), self._threads, _nbytes, AHEAD_NBYTES)
        with closing(chunks):
            for part in self._rebatch(self._in_order_of_time(chunks), rows):
                yield self._columns.batch(part, start)
                start += len(part[0])

    def _tasks(self, start: int) -> Iterator[Task[Chunk]]:
        for file in self._files:
            if start and len(self._files) > 1 and start >= (file_rows := file.count_rows()):
                start -= file_rows
                continue
            for piece in file.pieces(self._read_types(file), start):
                yield partial(self._canonical, file.name, piece)
            start = 0

    def _canonical(self, file: str, piece: FileChunk) -> Generator[Chunk]:
        row = piece.first
        with closing(piece.read()) as chunks:
            for chunk in chunks:
                where = RowNames(file, row)
                yield self._columns.arrays(chunk, where), where
                row += chunk.num_rows

    def _rebatch(self, chunks: Iterator[list[pa.Array]], rows: int) -> Iterator[list[pa.Array]]:
        """Recut chunks into chunks of exactly `rows` rows; only the last may be shorter."""
        held: list[list[pa.Array]] = []
        count, nbytes = 0, np.zeros(len(self._columns.wanted), np.int64)
        for chunk in chunks:
            first = 0
            while first < len(chunk[0]):
                taken = min(rows - count, len(chunk[0]) - first)
                held.append([a.slice(first, taken) for a in chunk])
                first, count = first + taken, count + taken
                nbytes += [a.nbytes for a in held[-1]]
                if nbytes.sum() > BATCH_NBYTES:
                    name, _ = self._columns.wanted[int(nbytes.argmax())]
                    raise BadInput(
                        f"column {name!r}: expected a batch of {rows} rows to take at most {BATCH_NBYTES >> 20:,} MiB, "
                        f"got more in {count} rows: set a smaller batch (train.batch_rows), or record shorter lists"
                    )
                if count == rows:
                    yield join_parts(held)
                    held, count, nbytes = [], 0, nbytes * 0
        if held:
            yield join_parts(held)

    def _in_order_of_time(self, chunks: Iterator[Chunk]) -> Iterator[list[pa.Array]]:
        last_time = float("-inf")
        for arrays, where in chunks:
            if self.schema.time:
                last_time = self._check_order(arrays[-1], last_time, where)
            yield arrays

    def _check_order(self, times: pa.Array, last: float, where: RowNames) -> float:
        seconds = times.to_numpy()
        if not len(seconds):
            return last
        back = seconds[1:] < seconds[:-1]
        if seconds[0] < last or back.any():
            row = 0 if seconds[0] < last else int(back.argmax()) + 1
            name = self.schema.time
            raise BadInput(
                f"column {name!r}: expected rows sorted by time, got an earlier time at {where(row)};"
                f" sort the data by {name!r}"
            )
        return float(seconds[-1])


def _nbytes(chunk: Chunk) -> int:
    return sum(array.nbytes for array in chunk[0])


def infer_fields(data: DataConfig, names: Sequence[str] | None) -> list[Field]:
    """Return columns (None: all except label, time and weight) with the kinds that a table's first file suggests."""
    file = _files(data, {})[0]
    if names is None:
        names = [name for name in file.names if name not in (*data.labels, data.time, data.weight)]
    return [Field(name, arrow.infer_kind(t, name)) for name, t in file.types(names).items()]


def infer_names(data: DataConfig) -> list[str]:
    return list(_files(data, {})[0].names)


def unsigned_columns(data: DataConfig) -> frozenset[str]:
    """Return the columns whose ids are unsigned, by a table's first file; none if it does not exist yet.

    Those are columns of uint64, and decimals or CSV cells of which the first have a number from 2**63 on, none below 0.
    """
    if data.format not in ("parquet", "csv"):
        return frozenset()
    try:
        _, file = next(_stored(data, {}))
        types = file.types(file.names)
    except BadInput:
        # Reading says what is wrong with it.
        return frozenset()
    return frozenset(name for name, t in types.items() if arrow.is_unsigned(t) or _begins_unsigned(file, name, t))


def _begins_unsigned(file: DataFile, name: str, t: pa.DataType) -> bool:
    # Large integers of a CSV are taken for floats.
    text = isinstance(file, CsvFile) and pa.types.is_floating(t)
    if not (text or pa.types.is_decimal(t)):
        return False
    try:
        piece = next(file.pieces({name: arrow.TEXT_ID if text else t}, 0))
        with closing(piece.read()) as chunks:
            numbers = next(chunks).column(0)
    except (BadInput, StopIteration):
        return False
    ends = pc.min_max(numbers).as_py()
    return ends["max"] is not None and ends["min"] >= 0 and 2**63 <= ends["max"] < 2**64


def open_table(data: DataConfig, fields: Sequence[Field], threads: int = 0) -> TableSource:
    """Open a table of one of formats.TABLES; threads as for TableSource. Raises BadInput before any batch."""
    schema = Schema(tuple(fields), data.label, data.time, data.weight, data.list_separator)
    kinds = {f.name: f.kind for f in fields} | dict.fromkeys((*schema.labels, schema.time, schema.weight), "float")
    return TableSource(_files(data, kinds), schema, csv=data.format == "csv", threads=threads)


def _files(data: DataConfig, kinds: Mapping[str, str]) -> Sequence[DataFile]:
    """Open the files; `kinds` of the requested columns, none for all, serve formats that do not store types."""
    return [with_folder_columns(file, path, kinds) for path, file in _stored(data, kinds)]


def _stored(data: DataConfig, kinds: Mapping[str, str]) -> Iterator[tuple[DataPath, DataFile]]:
    """Yield each file with its path, opened only then."""
    if data.format == "tfrecord":
        # Its kernel takes a moment to load.
        from freshet_serving.models.data.tfrecord import TfRecordFile

        yield from ((p, TfRecordFile(p, kinds)) for p in find_files(data.path, TFRECORD_SUFFIXES))
    elif data.format == "parquet":
        yield from ((p, _parquet(p)) for p in find_files(data.path, PARQUET_SUFFIXES))
    else:
        for p in find_files(data.path, CSV_SUFFIXES):
            yield p, CsvFile(p, "\t" if ".tsv" in p.name.lower() else ",")


def _parquet(path: DataPath) -> ParquetFile:
    if isinstance(path, Path) and nbytes_of(path) < SMALL_NBYTES:
        return IsolatedParquetFile(path)
    return ParquetFile(path)
