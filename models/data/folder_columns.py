"""Read the columns that Hive keeps in folder names only: `dt=2026-01-01/part-0.parquet` has a column dt.

A value is text: it is read as the type that the column is requested as, else as an integer if it is one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from freshet_serving.models.data.files import DataFile, FileChunk
from freshet_serving.models.data.object_files import DataPath
from freshet_serving.processor.errors import BadInput

_FOLDER = re.compile(r"([^/=]+)=([^/]*)/")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_GUESSES = (pa.decimal128(20, 0), pa.float64(), pa.timestamp("s"))
"""Types to try; integers first, of which a decimal takes decimal digits only, and all of 64 bits."""


def with_folder_columns(file: DataFile, path: DataPath, kinds: Mapping[str, str]) -> DataFile:
    """Return a file with the columns of its folders, if some are requested (all, without `kinds`) and not its own."""
    cells = {unquote(name): unquote(cell) for name, cell in _FOLDER.findall(str(path))}
    missing = {name: cell for name, cell in cells.items() if name not in file.names and (not kinds or name in kinds)}
    return FolderColumns(file, missing, kinds) if missing else file


class FolderColumns:
    """A DataFile with columns of one value each: `cells` by name, requested as `kinds`."""

    def __init__(self, file: DataFile, cells: Mapping[str, str], kinds: Mapping[str, str]) -> None:
        self._file, self._cells = file, cells
        self.name, self.nbytes, self.empty = file.name, file.nbytes, file.empty
        self.names = [*file.names, *cells]
        self._types = {name: _type_of(cell, kinds.get(name, "")) for name, cell in cells.items()}

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        stored = self._file.types([name for name in names if name not in self._cells])
        return {name: self._types[name] if name in self._cells else stored[name] for name in names}

    def count_rows(self) -> int:
        return self._file.count_rows()

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        stored = {name: t for name, t in types.items() if name not in self._cells}
        if not stored:
            # Rows are counted by a column.
            stored = self._file.types(self._file.names[:1])
        for piece in self._file.pieces(stored, start):
            yield FileChunk(piece.first, partial(self._read, piece, types))

    def _read(self, piece: FileChunk, types: dict[str, pa.DataType]) -> Generator[pa.RecordBatch]:
        values = {name: self._value(name, t) for name, t in types.items() if name in self._cells}
        with closing(piece.read()) as batches:
            for batch in batches:
                columns = {
                    name: pa.repeat(values[name], batch.num_rows) if name in values else batch.column(name)
                    for name in types
                }
                yield pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _value(self, name: str, t: pa.DataType) -> pa.Scalar:
        cell = self._cells[name]
        if cell == _NULL:
            return pa.scalar(None, t)
        try:
            return pa.scalar(cell).cast(t)
        except pa.ArrowInvalid:
            raise BadInput(f"column {name!r}: expected {t}, got {cell[:40]!r} in the folder of {self.name}") from None


def _type_of(cell: str, kind: str) -> pa.DataType:
    for t in () if kind == "string" else _GUESSES if kind else _GUESSES[:1]:
        try:
            pa.scalar(cell).cast(t)
        except pa.ArrowInvalid:
            continue
        return t
    return pa.string()
