"""Messages and record batches as columns, and which of their rows are not sound.

A message is JSON (an object is a row, a list of objects several), an Arrow IPC stream of record batches, or, in Redis,
fields that are cells of text as a CSV file has them. A column that a message lacks is null, which a float, a string and
a list may be. Times are Unix seconds, or text as ISO 8601 has it.

Nobody vouches for a message: it is at most MAX_MESSAGE_NBYTES long, Arrow's buffers are checked before anything reads
them, and what cannot be a row is told by its place and left out, row by row: a stream goes on behind it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from freshet_serving.models.data.arrow import Where
from freshet_serving.models.data.canonical import TEXT_TYPES, CanonicalColumns
from freshet_serving.models.data.files import RowNames
from freshet_serving.models.data.source import Schema
from freshet_serving.processor.errors import BadInput

MAX_MESSAGE_NBYTES = 64 << 20
ARROW_STREAM = b"\xff\xff\xff\xff"
CLOCKS = ("time", "seconds")

_JSON_TYPES = TEXT_TYPES | {"ids": pa.list_(pa.int64()), "strings": pa.list_(pa.string())}
_TIMES = (pa.float64(), pa.timestamp("us", "UTC"), pa.timestamp("us"))


class Rows(Protocol):
    """Rows that have come, as they lie."""

    def __len__(self) -> int: ...

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        """Rows [first, last) as canonical columns; raises BadInput."""
        ...


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Something that is no rows, and counts as so many. damage: of a file, which says nothing of how sound the rows of
    the stream are."""

    rows: int
    why: str
    damage: bool = False

    def __len__(self) -> int:
        return self.rows


class TableRows:
    """Of a record batch whose first row has this number in what `name` names."""

    def __init__(self, batch: pa.RecordBatch, columns: CanonicalColumns, name: str, first: int = 0) -> None:
        self._batch, self._columns, self._name, self._first = batch, columns, name, first

    def __len__(self) -> int:
        rows: int = self._batch.num_rows
        return rows

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        return self._columns.arrays(self._batch.slice(first, last - first), RowNames(self._name, self._first + first))


class MappedRows:
    """Mappings of columns to values, one a row, each with the name of where it was found."""

    def __init__(self, rows: Sequence[Mapping[Any, Any]], names: Sequence[str], columns: CanonicalColumns) -> None:
        """columns: of cells of text, by names as bytes, or of what JSON gives."""
        self._rows, self._names, self._columns = rows, names, columns

    def __len__(self) -> int:
        return len(self._rows)

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        made, text = {}, self._columns.text

        def where(row: int) -> str:
            return self._names[first + row]

        for name, kind in self._columns.wanted:
            key = name.encode() if text else name
            values = [row.get(key) for row in self._rows[first:last]]
            with _named(name, where):
                made[name] = _cells(values, kind) if text else _values(values, kind)
        return self._columns.arrays(pa.RecordBatch.from_pydict(made), where)


class MessageRows:
    """Messages of one stream as rows."""

    def __init__(self, schema: Schema) -> None:
        self._columns, self._cells = CanonicalColumns(schema, text=False), CanonicalColumns(schema, text=True)

    def of_cells(self, entries: Iterable[tuple[str, Mapping[bytes, bytes]]]) -> Iterator[Rows | RejectedRows]:
        """entries: (name, fields): one field `json` or `arrow` that is a message, or a cell a column."""
        rows: list[Mapping[bytes, bytes]] = []
        names: list[str] = []
        for name, fields in entries:
            message = fields.get(b"json", fields.get(b"arrow")) if len(fields) == 1 else None
            if message is None:
                rows.append(fields)
                names.append(name)
                continue
            if rows:
                yield MappedRows(rows, names, self._cells)
                rows, names = [], []
            yield from self.of_messages([(name, message)])
        if rows:
            yield MappedRows(rows, names, self._cells)

    def of_messages(self, messages: Iterable[tuple[str, bytes]]) -> Iterator[Rows | RejectedRows]:
        """messages: (name, bytes). What follows one another and has the same form is given together."""
        rows: list[Mapping[str, Any]] = []
        names: list[str] = []
        for name, message in messages:
            try:
                parts = self._read(name, message)
            except BadInput as error:
                parts = RejectedRows(1, f"{name}: {error}")
            if isinstance(parts, tuple):
                rows += parts[0]
                names += parts[1]
                continue
            if rows:
                yield MappedRows(rows, names, self._columns)
                rows, names = [], []
            yield from [parts] if isinstance(parts, RejectedRows) else parts
        if rows:
            yield MappedRows(rows, names, self._columns)

    def _read(self, name: str, message: bytes) -> tuple[list[Mapping[str, Any]], list[str]] | list[Rows] | RejectedRows:
        """A message's objects with their names, or its record batches."""
        if len(message) > MAX_MESSAGE_NBYTES:
            raise BadInput(f"at most {MAX_MESSAGE_NBYTES} bytes a message wanted, got {len(message)}")
        if message.startswith(ARROW_STREAM):
            return [*self._batches(name, message)]
        try:
            found = orjson.loads(message)
        except orjson.JSONDecodeError:
            raise BadInput("a JSON object, a list of them or an Arrow stream wanted") from None
        objects = found if isinstance(found, list) else [found]
        if not all(isinstance(one, dict) for one in objects):
            raise BadInput("a JSON object, a list of them or an Arrow stream wanted")
        return objects, [name] if objects is not found else [f"object {n} of {name}" for n in range(len(objects))]

    def _batches(self, name: str, message: bytes) -> Iterator[Rows]:
        first = 0
        try:
            with pa.ipc.open_stream(io.BytesIO(message)) as reader:
                names = [column for column, _ in self._columns.wanted]
                types = {field.name: field.type for field in reader.schema}
                if absent := [column for column in names if column not in types]:
                    raise BadInput(f"a column {absent[0]!r} wanted, got none")
                self._columns.check({column: types[column] for column in names})
                for batch in reader:
                    batch.validate(full=True)
                    yield TableRows(batch.select(names), self._columns, name, first)
                    first += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadInput(f"an Arrow stream wanted: {_line(error)}") from None


def sound_parts(rows: Rows, first: int, last: int) -> Iterator[tuple[int, list[pa.Array] | str]]:
    """Rows [first, last) in order: of each run that is sound its first row and columns, of each row that is not why."""
    parts = [(first, last)]
    while parts:
        first, last = parts.pop()
        try:
            made: list[pa.Array] | str = rows.arrays(first, last)
        except BadInput as error:
            if last - first > 1:
                middle = (first + last) // 2
                parts += [(middle, last), (first, middle)]
                continue
            made = str(error)
        yield first, made


def _values(values: Sequence[Any], kind: str) -> pa.Array:
    if kind in CLOCKS:
        return _times(pa.array(values))
    if kind in ("label", "weight", "float"):
        values = [float(value) if isinstance(value, bool) else value for value in values]
    if kind in ("id", "ids"):
        # Arrow would cut it.
        single = values if kind == "id" else [one for value in values if isinstance(value, list) for one in value]
        if cut := [one for one in single if isinstance(one, float)]:
            raise ValueError(f"an integer wanted, got {cut[0]}")
    return pa.array(values, _JSON_TYPES[kind])


def _cells(cells: Sequence[bytes | None], kind: str) -> pa.Array:
    text = pa.array(cells, pa.binary()).cast(pa.string())
    if kind in ("ids", "strings"):
        # A list that a row lacks is an empty one.
        return text.fill_null("")
    if kind == "string":
        return text
    text = pc.if_else(pc.equal(text, ""), None, text)
    return _times(text) if kind in CLOCKS else text.cast(TEXT_TYPES[kind])


def _times(array: pa.Array) -> pa.Array:
    """Unix seconds as numbers; text as numbers or as moments."""
    for n, kind in enumerate(_TIMES if pa.types.is_string(array.type) else ()):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            if n == len(_TIMES) - 1:
                raise
    return array


@contextmanager
def _named(column: str, where: Where) -> Iterator[None]:
    """What Arrow says of a column's values as BadInput that names the column and the first row."""
    try:
        yield
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"column {column!r}: {_line(error)} at {where(0)}") from None


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:160]
