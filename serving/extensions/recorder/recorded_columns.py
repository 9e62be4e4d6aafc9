"""Convert requests to the columns of a recording, and back.

Each candidate is one row. Each feature is a column under its own name, as models.data reads it (id int64, float
float32, string binary; ids and strings are lists of these). Each number of a request that is no such feature, for
example one that a stage reads, is a column freshet.input.NAME or freshet.input.NAME.COLUMN.
serving.extensions.recorder.request_recorder lists the other columns.

Invariants
- If a request sends one value of an input for all of its rows, the value is in the request's first row and its other
  rows are null. Nothing else is null, so a null means the value of the previous row. Older recordings repeat the value
  and have no nulls; the same readers read both.
- Values never become Python objects here: Arrow and numpy copy them without the GIL, each at most three times (batch,
  row group, page).
- held_nbytes() is an upper bound of the size of what batch() returns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, nbytes_of
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import FLOATS, NOT_GIVEN, UNREAD, Input, Manifest
from freshet_serving.processor.repository import GENERATION, INPUT, METADATA, OUTPUT, REQUEST, ROW, TIME
from freshet_serving.processor.sessions.request import PredictReply

TIMESTAMP = pa.timestamp("us", "UTC")
TYPES = {
    "id": pa.int64(),
    "float": pa.float32(),
    "string": pa.binary(),
    "ids": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float32()),
    "strings": pa.list_(pa.binary()),
}
KINDS = {"int64": ("id", "ids"), "float32": ("float", "floats"), "string": ("string", "strings")}
"""Kinds by an input's dtype, flat and ragged, for a column that is not a feature."""
CELL_NBYTES = 9
"""Bytes per row and column, besides the bytes of strings and lists: 8 of a number or two offsets, and a null bit."""


class RecordedColumn(NamedTuple):
    """A column of the file; `column` is that of its input, -1 if it is the whole input, and `kind` a key of TYPES."""

    name: str
    kind: str
    input: str
    column: int


def recorded(manifest: Manifest) -> list[RecordedColumn]:
    """Return the columns that hold a request.

    There is one for every number of every input, under the feature's name if it is a feature. Inputs of an entity whose
    records do not hold them as they were given have none: nulls there would be read as the previous request's values.
    """
    unknown = {name for entity in manifest.entities if entity.text_nbytes == NOT_GIVEN for name in entity.inputs}
    inputs = {i.name for i in manifest.inputs if i.name not in unknown}
    columns = [
        RecordedColumn(f.name, f.kind, f.input, f.column)
        for f in manifest.features
        if f.input in inputs and f.kind != FLOATS
    ]
    covered = {(c.input, max(c.column, 0)) for c in columns}
    for spec in (i for i in manifest.inputs if i.name in inputs):
        # Keys of users are personal data, so that what the model does not read is not recorded.
        if spec.name in manifest.fillers and manifest.fillers[spec.name].kind == UNREAD:
            continue
        kind = KINDS[spec.dtype][spec.ragged]
        for at in range(spec.columns or 1):
            if (spec.name, at) not in covered:
                name = f"{INPUT}{spec.name}.{at}" if spec.columns else f"{INPUT}{spec.name}"
                columns.append(RecordedColumn(name, kind, spec.name, at if spec.columns else -1))
    return columns


class RecordedColumns:
    """The columns of the recordings of one manifest; `names` are the inputs that have one."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._columns = recorded(manifest)
        self.names = frozenset(column.input for column in self._columns)
        self._inputs = {i.name: i for i in manifest.inputs}
        about = {
            "model": manifest.model,
            "inputs": [asdict(i) for i in manifest.inputs],
            "features": [column._asdict() for column in self._columns],
            "outputs": [asdict(o) for o in manifest.outputs],
        }
        fields = [(REQUEST, pa.string()), (ROW, pa.int32()), (TIME, TIMESTAMP), (GENERATION, pa.string())]
        fields += [(c.name, TYPES[c.kind]) for c in self._columns]
        fields += [
            (OUTPUT + o.name, pa.float32() if o.columns == 1 else pa.list_(pa.float32())) for o in manifest.outputs
        ]
        self.schema = pa.schema(fields, {METADATA: json.dumps(about).encode()})
        self._row_nbytes = CELL_NBYTES * len(fields) + sum(4 * output.columns for output in manifest.outputs)
        # Several features may read the same column, whose values are then stored once for each.
        uses = Counter((c.input, max(c.column, 0)) for c in self._columns)
        self._copies = Counter({name: most for (name, _), most in sorted(uses.items(), key=lambda use: use[1])})
        self._once = all(count == 1 for count in self._copies.values())

    def fit(self, manifest: Manifest) -> bool:
        recorder = self.manifest
        same = (manifest.inputs, manifest.outputs) == (recorder.inputs, recorder.outputs)
        return manifest is recorder or (same and recorded(manifest) == self._columns)

    def held_nbytes(self, inputs: Mapping[str, Column], rows: int, texts_nbytes: int) -> int:
        """Return an upper bound of a request's memory as a batch; each row repeats texts of `texts_nbytes`."""
        values = nbytes_of(inputs)
        if not self._once:
            values += sum(nbytes_of({n: c}) * (self._copies[n] - 1) for n, c in inputs.items() if self._copies[n] > 1)
        return values + rows * (self._row_nbytes + texts_nbytes)

    def batch(
        self, inputs: Mapping[str, Column], rows: int, request_id: str, reply: PredictReply, at_s: float
    ) -> pa.RecordBatch:
        """Return the rows of a request, given its inputs as it sent them and the time of the reply in Unix seconds."""
        columns: list[Any] = [
            pa.repeat(pa.scalar(request_id), rows),
            pa.array(np.arange(rows, dtype=np.int32)),
            pa.repeat(pa.scalar(int(at_s * 1e6), TIMESTAMP), rows),
            pa.repeat(pa.scalar(str(reply.generation)), rows),
        ]
        for column in self._columns:
            values = _values(inputs[column.input], column, self._inputs[column.input])
            sent_once = len(values) == 1 < rows
            columns.append(pa.concat_arrays([values, pa.nulls(rows - 1, values.type)]) if sent_once else values)
        for output in self.manifest.outputs:
            scores = np.ascontiguousarray(reply.outputs[output.name])
            flat = pa.array(scores.reshape(-1))
            starts = np.arange(0, len(flat) + 1, output.columns, dtype=np.int32)
            columns.append(flat if output.columns == 1 else pa.ListArray.from_arrays(pa.array(starts), flat))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _values(column: Column, recorded: RecordedColumn, spec: Input) -> pa.Array:
    """Return the values of a column of the file, as many rows as were sent."""
    if isinstance(column, Ragged):
        values = _strings(column.values) if isinstance(column.values, Strings) else pa.array(column.values)
        return pa.ListArray.from_arrays(pa.array(column.row_splits.astype(np.int32)), values)
    at, width = max(recorded.column, 0), spec.columns or 1
    if isinstance(column, Strings):
        strings = _strings(column)
        return strings if width == 1 else strings.take(pa.array(np.arange(at, len(column), width)))
    return pa.array(np.ascontiguousarray(column.reshape(len(column), -1)[:, at]), TYPES[recorded.kind])


def _strings(strings: Strings) -> pa.Array:
    first, last = int(strings.offsets[0]), int(strings.offsets[-1])
    offsets = pa.py_buffer((strings.offsets - first).astype(np.int32))
    data = pa.py_buffer(np.ascontiguousarray(strings.data[first:last]))
    return pa.Array.from_buffers(pa.binary(), len(strings), [None, offsets, data])


def request_of(table: pa.Table, features: list[dict[str, Any]], inputs: Sequence[Input]) -> dict[str, Column]:
    """Rebuild one request from its rows in a file; raise Corrupt if a value is missing.

    An input that was sent once has one row again. Features and inputs are those of the file's metadata.
    """
    request: dict[str, Column] = {}
    for spec in inputs:
        columns = [(max(f["column"], 0), _sent(table[f["name"]])) for f in features if f["input"] == spec.name]
        rows = len(columns[0][1]) if columns else len(table)
        if any(len(column) != rows for _, column in columns):
            raise Corrupt(f"recording: expected {rows} rows in each column of input {spec.name!r}")
        request[spec.name] = _input(columns, spec, rows)
    return request


def _sent(column: pa.ChunkedArray) -> pa.Array:
    """Return a column's values as they were sent: one row if the other rows are null."""
    values = column.combine_chunks()
    values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    if values.null_count and values.null_count == len(values) - 1:
        values = values.slice(0, 1)
    if values.null_count:
        raise Corrupt("recording: expected a value, got a null in a request's first row, or in some of its rows only")
    return values


def _input(columns: list[tuple[int, pa.Array]], spec: Input, rows: int) -> Column:
    width = spec.columns or 1
    if spec.ragged:
        if not columns:
            empty = Strings.of([]) if spec.dtype == "string" else np.empty(0, np.dtype(spec.dtype))
            return Ragged(empty, np.zeros(rows + 1, np.int64))
        lists = columns[0][1]
        splits = lists.offsets.to_numpy().astype(np.int64)
        values = lists.values.slice(int(splits[0]), int(splits[-1] - splits[0]))
        return Ragged(_strings_of(values) if spec.dtype == "string" else _numbers(values, spec), splits - splits[0])
    if spec.dtype == "string":
        by_place = dict(columns)
        parts = [by_place.get(at, pa.repeat(pa.scalar(b"", pa.binary()), rows)) for at in range(width)]
        # The parts follow each other column by column; a request has the values row by row.
        order = np.arange(rows * width).reshape(width, rows).T.reshape(-1)
        return _strings_of(parts[0] if width == 1 else pa.concat_arrays(parts).take(pa.array(order)))
    numbers = np.zeros((rows, width), np.dtype(spec.dtype))
    for at, column in columns:
        numbers[:, at] = _numbers(column, spec)
    return numbers if spec.columns else numbers[:, 0]


def _numbers(values: pa.Array, spec: Input) -> NDArray[Any]:
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers.astype(np.dtype(spec.dtype), copy=False)


def _strings_of(values: pa.Array) -> Strings:
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
    text = np.frombuffer(data, np.uint8)[at[0] : at[-1]] if data is not None else np.empty(0, np.uint8)
    return Strings(text.copy(), at - at[0])
