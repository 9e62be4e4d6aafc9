"""Read Parquet and CSV files as streams of Arrow record batches: only the requested columns, never the whole file.

Every failure of a reader becomes one line of BadInput that names file, column and row. Rows count from 0 within their
file; a CSV's header is not a row.
"""

from __future__ import annotations

import codecs
import glob
import re
import resource
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from freshet_serving.models.data.broadcast_columns import broadcast_columns, fill_forward, pick_once
from freshet_serving.models.data.file_order import in_order_of_numbers
from freshet_serving.models.data.formats import nothing_there
from freshet_serving.models.data.object_files import DataPath, StoredFile, is_object_url, open_bytes, stored_files
from freshet_serving.processor.errors import BadInput, nearest

CHUNK_ROWS, LEAST_CHUNK_ROWS = 32768, 256
CHUNK_NBYTES = 4 << 20
PIECE_ROWS, PIECE_NBYTES = 16384, 32 << 20
"""Smaller row groups are read together; larger ones with a thread for each column, because few fit in memory."""
STREAM_NBYTES = 1 << 20
"""Bytes of a column read from its file at a time: a column of a large row group is not held compressed either."""

_CONVERSION = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): "
    r"invalid (?:value '(.*)'|UTF8 data)",
    re.S,
)
_NO_INTEGER = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?The string '(.*)' is not a valid decimal128 number", re.S
)
_CELLS = {"integer": "an integer", "double": "a number", "string": "text", "bool": "true or false"}
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.I)
_PARQUET, MAX_BEGINNING = b"PAR1", 4096
_SEPARATORS = ";\t|,"
MAX_LISTED = 16
_PARSE = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")


class FileChunk(NamedTuple):
    """Consecutive rows of a file from row `first` on; `read` may be called on any thread."""

    first: int
    read: Callable[[], Generator[pa.RecordBatch]]


class DataFile(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    @property
    def names(self) -> list[str]: ...

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column, a CSV's by its first block; raise BadInput unless each exists once."""
        ...

    @property
    def empty(self) -> bool: ...

    def count_rows(self) -> int: ...

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        """Return the rows from row `start` on, in order, as pieces of the named columns; others are not decoded.

        Args:
            types: Arrow type by column name. CSV cells are parsed as these types; Parquet columns keep their own.
        """
        ...


class RowNames:
    """Names of the rows of a chunk that starts at row `first` of a file: an arrow.Where."""

    def __init__(self, file: str, first: int) -> None:
        self._file, self._first = file, first

    def __call__(self, row: int) -> str:
        return f"row {self._first + row} of {self._file}"


def nbytes_of(path: DataPath) -> int:
    """Return the size of a data file; 0 for one that does not exist."""
    if isinstance(path, StoredFile):
        return path.nbytes
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_files(path: str, suffixes: Sequence[str] = ()) -> Sequence[DataPath]:
    """Return the data files behind a path, part-2 before part-10, on disk or in an object store; BadInput without any.

    A path is a file, folder, glob, or address in an object store. In folders, hidden files, names that start with '_'
    (which writers leave behind) and, if suffixes are given, files with others are skipped.
    """
    if is_object_url(path):
        return stored_files(path, suffixes)
    if glob.has_magic(path) and not Path(path).exists():
        paths = [Path(p) for p in glob.glob(path, recursive=True)]
        files = [p for p in paths if p.is_file()]
    elif Path(path).is_dir():
        files = []
        for p in Path(path).rglob("*"):
            plain = not any(part.startswith((".", "_")) for part in p.relative_to(path).parts)
            if plain and p.is_file() and (not suffixes or p.name.lower().endswith(tuple(suffixes))):
                files.append(p)
    elif Path(path).is_file():
        files = [Path(path)]
    else:
        raise BadInput(nothing_there(path))
    if not files:
        kinds = " or ".join(suffixes) if suffixes else "data"
        raise BadInput(f"data.path: expected at least one {kinds} file, got none in {path!r}")
    return sorted(files, key=in_order_of_numbers)


def _pick(names: Sequence[str], schema: pa.Schema, file: str) -> dict[str, pa.DataType]:
    types = {}
    for name in names:
        indices = schema.get_all_field_indices(name)
        if len(indices) != 1:
            hint = "" if indices else nearest(name, schema.names) or _columns_hint(schema.names)
            raise BadInput(f"column {name!r}: expected exactly one in {file}, got {len(indices)}{hint}")
        types[name] = schema.field(indices[0]).type
    return types


@contextmanager
def _reading(file: str, kind: str) -> Iterator[None]:
    try:
        yield
    except BadInput:
        raise
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        # OSError carries the path and errno; the caller needs only the reason. Column names, and library
        # messages that contain file content, need not be UTF-8.
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, MemoryError):
            limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
            reason = f"it needs more than {limit >> 20:,} MiB of memory" if limit > 0 else "it needs too much memory"
        raise BadInput(f"{file}: cannot be read as {kind}: {_line(reason)}") from None


def _columns_hint(names: Sequence[str]) -> str:
    shown, more = names[:MAX_LISTED], f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    if all(_NUMBER.fullmatch(name) for name in names):
        return f"; the first line, {', '.join(map(repr, shown))}{more}, is not a header: expected column names"
    return f"; it has {', '.join(shown)}{more}"


def _line(text: str) -> str:
    return text.partition("\n")[0][:200]


class ParquetFile:
    def __init__(self, path: DataPath) -> None:
        self._path = path
        self.name = path.name
        self.nbytes = nbytes_of(path)
        with self._open() as file:
            self._schema: pa.Schema = file.schema_arrow
            self._rows: int = file.metadata.num_rows
        if self._rows < 0:
            raise BadInput(f"{self.name}: expected a Parquet file, got one that claims {self._rows} rows")
        self.empty = self._rows == 0

    @contextmanager
    def _open(self, metadata: pyarrow.parquet.FileMetaData | None = None) -> Iterator[pyarrow.parquet.ParquetFile]:
        # pre_buffer would fetch every row group at once: the whole file in memory.
        options = {"metadata": metadata, "pre_buffer": False, "buffer_size": STREAM_NBYTES}
        path = self._path
        source = open_bytes(path, ahead=False) if isinstance(path, StoredFile) else path
        try:
            with _reading(self.name, "a Parquet file"), pyarrow.parquet.ParquetFile(source, **options) as file:
                yield file
        except BadInput:
            if isinstance(path, Path) and (kind := _other_kind(path)):
                raise BadInput(f"{self.name}: expected a Parquet file, got {kind}") from None
            raise

    @property
    def names(self) -> list[str]:
        names: list[str] = self._schema.names
        return names

    @property
    def recorded(self) -> frozenset[str]:
        """The inputs of requests that the file has, if it is a recording."""
        return broadcast_columns(self._schema)

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        return _pick(names, self._schema, self.name)

    def count_rows(self) -> int:
        return self._rows

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        """Yield one piece for each row group, or for several small ones; those before `start` are not read."""
        with self._open() as file:
            metadata = file.metadata
        first, held, groups = 0, 0, []
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            if first + held + rows <= start:
                first += rows
                continue
            groups.append(group)
            held += rows
            if held >= PIECE_ROWS or group == metadata.num_row_groups - 1:
                skipped = max(0, start - first)
                yield FileChunk(first + skipped, partial(self._read_groups, metadata, groups, list(types), skipped))
                first, held, groups = first + held, 0, []

    def may_expand(self, types: dict[str, pa.DataType], nbytes: int) -> bool:
        """Return whether rows that are decoded at once may take more than some bytes, if their writer meant it."""
        if any(pa.types.is_nested(t) for t in types.values()):
            # A run of any length has a few bytes.
            return True
        if all(pa.types.is_primitive(t) for t in types.values()):
            return False
        with self._open() as file:
            metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return any(min(CHUNK_ROWS, group.num_rows) * group.total_byte_size > nbytes for group in groups)

    def rows(self, wanted: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield rows by ascending numbers, with all columns; only their row groups are decoded.

        Of a recording they are in the form of models.data.broadcast_columns.take_once.
        """
        with self._open() as file:
            metadata = file.metadata
        numbers, first = np.asarray(wanted, np.int64), 0
        for group in range(metadata.num_row_groups):
            held = metadata.row_group(group).num_rows
            chosen = numbers[(numbers >= first) & (numbers < first + held)] - first
            first += held
            if not len(chosen):
                continue
            with closing(self._batches(metadata, [group], self.names)) as batches:
                yield from pick_once(batches, self.recorded, chosen)

    def _read_groups(
        self, metadata: pyarrow.parquet.FileMetaData, groups: list[int], names: list[str], skipped: int
    ) -> Generator[pa.RecordBatch]:
        with closing(self._batches(metadata, groups, names)) as batches:
            for batch in fill_forward(batches, self.recorded, CHUNK_NBYTES):
                if skipped < batch.num_rows:
                    yield batch.slice(skipped).select(names)
                skipped = max(0, skipped - batch.num_rows)

    def _batches(
        self, metadata: pyarrow.parquet.FileMetaData, groups: list[int], names: list[str]
    ) -> Generator[pa.RecordBatch]:
        with _reading(self.name, "a Parquet file"):
            nbytes = sum(_decoded_nbytes(metadata.row_group(group), names) for group in groups)
        fitting = CHUNK_NBYTES * sum(metadata.row_group(group).num_rows for group in groups) // nbytes
        rows = min(CHUNK_ROWS, max(LEAST_CHUNK_ROWS, fitting))
        with self._open(metadata) as file:
            yield from file.iter_batches(rows, groups, names, use_threads=nbytes > PIECE_NBYTES)


def _decoded_nbytes(group: pyarrow.parquet.RowGroupMetaData, names: list[str]) -> int:
    """Return the maximum bytes in memory of these columns of a row group, 1 or more.

    From the size of the whole group: reading a column's size crashes the process if a corrupt file's statistics
    contradict each other.
    """
    return int(group.num_rows) * 8 * len(names) + int(group.total_byte_size) + 1


def _kind_of_time(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return "Unix seconds"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return ""
    return "a date and time"


def _text_stream(path: DataPath) -> pa.NativeFile:
    if not isinstance(path, StoredFile):
        return pa.input_stream(str(path), compression="detect")
    packing = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
    return pa.input_stream(open_bytes(path), compression=packing.get(Path(path.name).suffix.lower()))


def _other_kind(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            begins = file.read(MAX_BEGINNING)
            file.seek(max(0, path.stat().st_size - len(_PARQUET)))
            ends = file.read()
    except OSError:
        return ""
    if not begins:
        return "an empty file"
    if begins.startswith(_PARQUET):
        return "" if ends == _PARQUET else "a truncated one"
    first = begins.partition(b"\n")[0]
    if first.isascii() and first.decode().strip().isprintable() and b"," in first:
        return 'text with commas, which looks like CSV (data.format = "csv")'
    return ""


class CsvFile:
    """A file of text cells, plain or compressed (.gz, .bz2, .zst by its suffix)."""

    def __init__(
        self,
        path: DataPath,
        delimiter: str = ",",
        names: list[str] | None = None,
        quoted: bool = True,
        data: bytes | None = None,
    ) -> None:
        """Open a file, without a header if it has `names`; `data` is its text, if the caller has it already."""
        self._path, self._names, self._data = path, names, data
        self.nbytes = nbytes_of(path)
        self._schema = pa.schema([])
        self.name = path.name
        self._delimiter = delimiter
        self._parse = pyarrow.csv.ParseOptions(
            delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
        )
        self._refuse_utf16()
        with self._open(None) as reader:
            self._schema = reader.schema
            self.empty = not any(batch.num_rows for batch in reader)

    @contextmanager
    def _open(self, types: dict[str, pa.DataType] | None) -> Iterator[pyarrow.csv.CSVStreamingReader]:
        # One thread: otherwise errors do not carry the row.
        read = pyarrow.csv.ReadOptions(use_threads=False, column_names=self._names, block_size=4 << 20)
        convert = pyarrow.csv.ConvertOptions(
            column_types=types, include_columns=list(types) if types else None, strings_can_be_null=False
        )
        with _reading(self.name, "a CSV file"):
            try:
                with (
                    self._text() as stream,
                    pyarrow.csv.open_csv(stream, read, self._parse, convert) as reader,
                ):
                    yield reader
            except pa.ArrowInvalid as error:
                raise BadInput(self._explain(str(error))) from None

    def _text(self) -> pa.NativeFile:
        return _text_stream(self._path) if self._data is None else pa.BufferReader(self._data)

    def _refuse_utf16(self) -> None:
        with _reading(self.name, "a CSV file"), self._text() as stream:
            begins = stream.read(len(codecs.BOM_UTF32_LE))
        if begins.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or begins.count(0) >= len(begins) // 2 > 0:
            raise BadInput(f"{self.name}: expected UTF-8 text, got UTF-16; convert it: iconv -f UTF-16 -t UTF-8")

    def _explain(self, error: str) -> str:
        if cell := _CONVERSION.match(error):
            at, row, expected, got = cell.groups()
            return self._odd_cell(at, row, expected, got)
        if cell := _NO_INTEGER.match(error):
            at, row, got = cell.groups()
            return self._odd_cell(at, row, "integer", got)
        if parse_error := _PARSE.match(error):
            row, expected, got = parse_error.groups()
            return f"{self.name}: expected {expected} columns, got {got} at row {self._row(row)}"
        if error.startswith("Empty CSV file"):
            return f"{self.name}: expected rows, got an empty file"
        return f"{self.name}: cannot be read as a CSV file: {_line(error)}"

    def _row(self, line: str) -> int:
        return int(line) - 1 - (self._names is None)

    def _odd_cell(self, at: str, row: str | None, expected: str, got: str | None) -> str:
        names = self._names or self._schema.names
        name = names[int(at)] if int(at) < len(names) else at
        where = f" at row {self._row(row)} of {self.name}" if row else f" in {self.name}"
        value = "bytes that are not UTF-8" if got is None else repr(got[:40])
        return f"column {name!r}: expected {_CELLS.get(expected, expected)}, got {value}{where}"

    @property
    def names(self) -> list[str]:
        names: list[str] = self._schema.names
        return names

    def types(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        (first, *others), delimiter = self._schema.names, self._delimiter
        other = next((c for c in _SEPARATORS if c != delimiter and c in first), "")
        if other and not others and first not in names:
            raise BadInput(f"{self.name}: expected columns separated by {delimiter!r}, got a header with {other!r}")
        return _pick(names, self._schema, self.name)

    def odd_time(self, name: str) -> str:
        """Return an error about the first cell that is no time of the first cell's kind; "" if all are."""
        row, first = 0, ""
        for batch in self.read({name: pa.string()}, 0):
            for text in batch.column(0).to_pylist():
                kind = _kind_of_time(text)
                first = first or kind
                if not kind or kind != first:
                    expected = first or "Unix seconds, or a date such as 2026-11-24 19:20:18"
                    return f"column {name!r}: expected {expected}, got {text[:40]!r} at row {row} of {self.name}"
                row += 1
        return ""

    def count_rows(self) -> int:
        with self._open({self._schema.names[0]: pa.string()}) as reader:
            return sum(batch.num_rows for batch in reader)

    def pieces(self, types: dict[str, pa.DataType], start: int) -> Iterator[FileChunk]:
        """Yield the whole file as one piece: a row's position in text is known only by reading the rows before it."""
        yield FileChunk(start, partial(self.read, types, start))

    def read(self, types: dict[str, pa.DataType], start: int) -> Generator[pa.RecordBatch]:
        """Yield the named columns, in this order, from row `start` on."""
        with self._open(types) as reader:
            # Parse and drop the rows before `start`: the reader's own skipping counts blank lines as rows.
            for batch in reader:
                if start < batch.num_rows:
                    yield batch.slice(start)
                start = max(0, start - batch.num_rows)
