"""Convert messages and record batches to columns, and isolate invalid rows.

A message is JSON (an object is a row, a list of objects several), an Arrow IPC stream of record batches, or, in Redis,
fields that are text cells like those of a CSV file. A column missing from a message is null, which is allowed for a
float, a string and a list. Times are Unix seconds, or ISO 8601 text.

Messages are untrusted: their length is limited to MAX_MESSAGE_NBYTES, Arrow buffers are validated before use, and data
that cannot be a row are reported by their position and skipped, row by row, so the stream continues behind them.
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

from freshet_serving.models.data.arrow import EXACT, Where
from freshet_serving.models.data.canonical import TEXT_TYPES, CanonicalColumns
from freshet_serving.models.data.files import RowNames
from freshet_serving.models.data.source import Schema
from freshet_serving.processor.errors import BadInput

MAX_MESSAGE_NBYTES = 64 << 20
ARROW_STREAM = b"\xff\xff\xff\xff"
CLOCKS = ("time", "seconds")

_JSON_TYPES = TEXT_TYPES | {"strings": pa.list_(pa.string())}
_IDS = {kind: (pa.list_(pa.int64()), pa.list_(pa.uint64())) for kind in ("ids",)} | {"id": (pa.int64(), pa.uint64())}
"""Types of ids in JSON: a message's are all signed or all unsigned."""
_TIMES = (pa.float64(), pa.timestamp("us", "UTC"), pa.timestamp("us"))


class Rows(Protocol):
    """Rows that have arrived, not yet checked."""

    def __len__(self) -> int: ...

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        """Return rows [first, last) as canonical columns; raise BadInput if one is invalid."""
        ...


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Data that cannot be read as rows; `rows` is how many they count as.

    A damaged file (`damage`) does not count towards the rate of invalid rows of the stream.
    """

    rows: int
    why: str
    damage: bool = False

    def __len__(self) -> int:
        return self.rows


class TableRows:
    """Rows of a record batch, which begins at row `first` of the file or message `name`."""

    def __init__(self, batch: pa.RecordBatch, columns: CanonicalColumns, name: str, first: int = 0) -> None:
        self._batch, self._columns, self._name, self._first = batch, columns, name, first

    def __len__(self) -> int:
        rows: int = self._batch.num_rows
        return rows

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        return self._columns.arrays(self._batch.slice(first, last - first), RowNames(self._name, self._first + first))


class MappedRows:
    """Rows as mappings, one a row: text cells by names as bytes, or JSON values by names, as `columns` is for.

    `names` say each row's origin, for errors.
    """

    def __init__(self, rows: Sequence[Mapping[Any, Any]], names: Sequence[str], columns: CanonicalColumns) -> None:
        self._rows, self._names, self._columns = rows, names, columns

    def __len__(self) -> int:
        return len(self._rows)

    def arrays(self, first: int, last: int) -> list[pa.Array]:
        arrays, text = {}, self._columns.text

        def where(row: int) -> str:
            return self._names[first + row]

        for name, kind in self._columns.wanted:
            key = name.encode() if text else name
            values = [row.get(key) for row in self._rows[first:last]]
            with _named(name, where):
                arrays[name] = _cells(values, kind) if text else _values(values, kind)
        return self._columns.arrays(pa.RecordBatch.from_pydict(arrays), where)


class MessageRows:
    def __init__(self, schema: Schema) -> None:
        self._columns, self._cells = CanonicalColumns(schema, text=False), CanonicalColumns(schema, text=True)

    def of_cells(self, entries: Iterable[tuple[str, Mapping[bytes, bytes]]]) -> Iterator[Rows | RejectedRows]:
        """Yield rows of (name, fields) entries: one cell a column, or a single field `json` or `arrow`, a message."""
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
        """Yield rows of (name, bytes) messages; consecutive messages of the same form are combined."""
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
        if len(message) > MAX_MESSAGE_NBYTES:
            raise BadInput(f"expected messages of at most {MAX_MESSAGE_NBYTES} bytes, got {len(message)}")
        if message.startswith(ARROW_STREAM):
            return [*self._batches(name, message)]
        try:
            parsed = orjson.loads(message)
        except orjson.JSONDecodeError:
            raise BadInput("expected a JSON object, a list of them or an Arrow stream") from None
        objects = parsed if isinstance(parsed, list) else [parsed]
        if not all(isinstance(row, dict) for row in objects):
            raise BadInput("expected a JSON object, a list of them or an Arrow stream")
        return objects, [name] if objects is not parsed else [f"object {n} of {name}" for n in range(len(objects))]

    def _batches(self, name: str, message: bytes) -> Iterator[Rows]:
        first = 0
        try:
            with pa.ipc.open_stream(io.BytesIO(message)) as reader:
                names = [column for column, _ in self._columns.wanted]
                types = {field.name: field.type for field in reader.schema}
                if absent := [column for column in names if column not in types]:
                    raise BadInput(f"column {absent[0]!r} does not exist")
                self._columns.check({column: types[column] for column in names})
                for batch in reader:
                    batch.validate(full=True)
                    yield TableRows(batch.select(names), self._columns, name, first)
                    first += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadInput(f"cannot be read as an Arrow stream: {_line(error)}") from None


def sound_parts(rows: Rows, first: int, last: int) -> Iterator[tuple[int, list[pa.Array] | str]]:
    """Yield the first row and the columns of each valid run of rows [first, last), or an invalid row and its error."""
    parts = [(first, last)]
    while parts:
        first, last = parts.pop()
        try:
            arrays: list[pa.Array] | str = rows.arrays(first, last)
        except BadInput as error:
            if last - first > 1:
                middle = (first + last) // 2
                parts += [(middle, last), (first, middle)]
                continue
            arrays = str(error)
        yield first, arrays


def _values(values: Sequence[Any], kind: str) -> pa.Array:
    if kind in CLOCKS:
        return _times(pa.array(values))
    if kind in ("label", "weight", "float"):
        values = [float(value) if isinstance(value, bool) else value for value in values]
    if kind not in _IDS:
        return pa.array(values, _JSON_TYPES[kind])
    if kind == "id":
        values = [_whole(value) for value in values]
    else:
        values = [[_whole(item) for item in value] if isinstance(value, list) else value for value in values]
    signed, unsigned = _IDS[kind]
    try:
        return pa.array(values, signed)
    except OverflowError:
        return pa.array(values, unsigned)


def _whole(value: Any) -> Any:
    """Return a float that stands for one integer as that integer; Arrow would truncate it silently."""
    if isinstance(value, float):
        if not (value.is_integer() and abs(value) < EXACT[8]):
            raise ValueError(f"expected an integer, got {value}")
        return int(value)
    return value


def _cells(cells: Sequence[bytes | None], kind: str) -> pa.Array:
    text = pa.array(cells, pa.binary()).cast(pa.string())
    if kind in ("ids", "strings"):
        # A missing list is an empty one.
        return text.fill_null("")
    if kind == "string":
        return text
    text = pc.if_else(pc.equal(text, ""), None, text)
    return _times(text) if kind in CLOCKS else text.cast(TEXT_TYPES[kind])


def _times(array: pa.Array) -> pa.Array:
    """Return Unix seconds as numbers; text is parsed as numbers or as timestamps."""
    for n, kind in enumerate(_TIMES if pa.types.is_string(array.type) else ()):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            if n == len(_TIMES) - 1:
                raise
    return array


@contextmanager
def _named(column: str, where: Where) -> Iterator[None]:
    """Turn Arrow's errors about a column into BadInput that names the column and the first row."""
    try:
        yield
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"column {column!r}: {_line(error)} at {where(0)}") from None


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:160]
