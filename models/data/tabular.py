"""A user's own table: Parquet or CSV; a file, a folder or a glob; streamed, and only the columns needed.

The rows are the stream: files in the order of their names, rows in the order of their files. With a time
column they must be sorted by it, since deltas are cut along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from models.data import arrow
from models.data.files import CsvFile, DataFile, ParquetFile, RowNames, find_files
from models.data.formats import CSV_SUFFIXES, PARQUET_SUFFIXES
from models.data.source import Batch, Field, Schema, WantedColumn, check_position
from processor.errors import BadInput

_CSV_TYPES = {
    "id": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ids": pa.string(),
    "strings": pa.string(),
}
"""CSV cells are parsed as these; lists come as text between '|'."""


class TableSource:
    """Rows of data files of one layout, as batches. csv: cells are text, and lists are split at '|'."""

    def __init__(self, files: Sequence[DataFile], schema: Schema, csv: bool) -> None:
        self._files, self._csv, self.schema = files, csv, schema
        self._kinds = [f.kind for f in schema.fields] + ["label"] * bool(schema.label) + ["time"] * bool(schema.time)
        self._names = [*schema.names] + [schema.label] * bool(schema.label) + [schema.time] * bool(schema.time)
        self._read_types(files[0])
        if all(file.empty for file in files):
            raise BadInput(f"{files[0].name}: rows wanted, got an empty table")

    def _read_types(self, file: DataFile) -> dict[str, pa.DataType]:
        """Column -> the Arrow type that it is read as; raises BadInput where that cannot serve its kind."""
        types, own = {}, file.types(self._names)
        for name, kind in zip(self._names, self._kinds):
            types[name] = own[name]
            if self._csv and kind == "label":
                types[name] = own[name] if pa.types.is_boolean(own[name]) else pa.float64()
            elif self._csv and kind != "time":
                types[name] = _CSV_TYPES[kind]
            else:
                arrow.check_type(own[name], kind, name)
                if self._csv and not pa.types.is_temporal(own[name]):
                    types[name] = pa.float64()
        return types

    def count_rows(self) -> int:
        return sum(f.count_rows() for f in self._files)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """See Source.batches. Raises BadInput that names the column and, from 0 within its file, the row."""
        check_position(rows, start)
        for part in _rebatch(self._canonical(start), rows):
            values = [arrow.column(a, kind) for a, kind in zip(part, self._kinds)]
            columns = dict(zip(self.schema.names, values))
            rest = values[len(columns) :]
            label = rest.pop(0) if self.schema.label else np.empty((len(part[0]), 0), np.float32)
            yield Batch(columns, label, rest[0] if rest else None, start)  # type: ignore[arg-type]
            start += len(part[0])

    def _canonical(self, start: int) -> Iterator[list[pa.Array]]:
        """Checked columns of one canonical type each, chunk by chunk, over all files, from row `start` on."""
        last_time = float("-inf")
        for file in self._files:
            if start and len(self._files) > 1 and start >= (file_rows := file.count_rows()):
                start -= file_rows
                continue
            row = start
            for chunk in file.read(self._read_types(file), start):
                where = RowNames(file.name, row)
                arrays = []
                for array, name, kind in zip(chunk.columns, self._names, self._kinds):
                    if self._csv and kind in ("ids", "strings"):
                        array = arrow.split_text(array, kind, name, where)
                    arrays.append(arrow.canonical(array, kind, name, where))
                if self.schema.time:
                    last_time = self._check_order(arrays[-1], last_time, where)
                row += chunk.num_rows
                yield arrays
            start = 0

    def _check_order(self, times: pa.Array, last: float, where: RowNames) -> float:
        seconds = times.to_numpy()
        if not len(seconds):
            return last
        back = seconds[1:] < seconds[:-1]
        if seconds[0] < last or back.any():
            row = 0 if seconds[0] < last else int(back.argmax()) + 1
            name = self.schema.time
            raise BadInput(
                f"column {name!r}: rows in order of time wanted, got an earlier time at {where(row)};"
                f" sort the data by {name!r}"
            )
        return float(seconds[-1])


def _rebatch(chunks: Iterator[list[pa.Array]], rows: int) -> Iterator[list[pa.Array]]:
    """Cuts and joins chunks into chunks of exactly `rows` rows; only the last may be shorter."""
    held: list[list[pa.Array]] = []
    count = 0
    for chunk in chunks:
        first = 0
        while first < len(chunk[0]):
            taken = min(rows - count, len(chunk[0]) - first)
            held.append([a.slice(first, taken) for a in chunk])
            first, count = first + taken, count + taken
            if count == rows:
                yield _join(held)
                held, count = [], 0
    if held:
        yield _join(held)


def _join(parts: list[list[pa.Array]]) -> list[pa.Array]:
    return parts[0] if len(parts) == 1 else [pa.concat_arrays(column) for column in zip(*parts)]


def open_table(path: str, form: str, label: str, time: str, features: Sequence[WantedColumn]) -> TableSource:
    """Opens a Parquet or CSV table; form: 'parquet' | 'csv'. Raises BadInput before any batch."""
    schema = Schema(tuple(Field(f.name, f.kind) for f in features), label, time)
    if form == "parquet":
        return TableSource([ParquetFile(p) for p in find_files(path, PARQUET_SUFFIXES)], schema, csv=False)
    files = [CsvFile(p, "\t" if ".tsv" in p.name.lower() else ",") for p in find_files(path, CSV_SUFFIXES)]
    return TableSource(files, schema, csv=True)
