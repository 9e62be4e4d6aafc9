"""Requests as columns of a recording, and back.

One row a candidate: a column for each feature under its own name, as models.data reads it (id int64, float float32,
string binary, ids and strings lists of these); a column freshet.input.NAME or freshet.input.NAME.COLUMN for each number
that a request sends and no such feature is, as where a stage reads it. serving.telemetry.request_recorder lists those
beside them.

Invariants
- The value of an input that a request sends once, for all of its rows, is in the request's first row; its other rows
  are null. Nothing else is null, so a null stands for the value of the row before. Recordings made before this was so
  repeat the value and have no nulls: the same readers read both.
- Values are never Python objects here: Arrow and numpy copy them without the GIL, each at most three times
  (batch, row group, page).
- held_nbytes() is no less than what batch() makes.
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
from freshet_serving.processor.package import FLOATS, Input, Manifest
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
"""By an input's dtype: of a column that is no feature, flat and ragged."""
CELL_NBYTES = 9
"""Of a row of any column, beside the bytes of strings and lists: 8 of a number or two offsets, and the null's bit."""


class RecordedColumn(NamedTuple):
    """A column of the file: kind as TYPES has it, column of the input, or -1 where that is all of it."""

    name: str
    kind: str
    input: str
    column: int


def recorded(manifest: Manifest) -> list[RecordedColumn]:
    """The columns that hold a request: every number of every input, those that are a feature under its name."""
    inputs = {i.name for i in manifest.inputs}
    columns = [
        RecordedColumn(f.name, f.kind, f.input, f.column)
        for f in manifest.features
        if f.input in inputs and f.kind != FLOATS
    ]
    there = {(c.input, max(c.column, 0)) for c in columns}
    for spec in manifest.inputs:
        kind = KINDS[spec.dtype][spec.ragged]
        for at in range(spec.columns or 1):
            if (spec.name, at) not in there:
                name = f"{INPUT}{spec.name}.{at}" if spec.columns else f"{INPUT}{spec.name}"
                columns.append(RecordedColumn(name, kind, spec.name, at if spec.columns else -1))
    return columns


class RecordedColumns:
    """The columns of one manifest's recordings."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._columns = recorded(manifest)
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
        # Features may read the same column: its values are there once for each.
        uses = Counter((c.input, max(c.column, 0)) for c in self._columns)
        self._copies = Counter({name: most for (name, _), most in sorted(uses.items(), key=lambda use: use[1])})
        self._once = all(count == 1 for count in self._copies.values())

    def fit(self, manifest: Manifest) -> bool:
        """Whether requests of that manifest have these columns."""
        mine = self.manifest
        return manifest is mine or (
            (manifest.inputs, manifest.features, manifest.outputs) == (mine.inputs, mine.features, mine.outputs)
        )

    def held_nbytes(self, inputs: Mapping[str, Column], rows: int, texts_nbytes: int) -> int:
        """Memory that a request takes as a batch, at most.

        Args:
            inputs: As the request sent them.
            rows: Of the request.
            texts_nbytes: Of its id and its generation, which are in every row.
        """
        values = nbytes_of(inputs)
        if not self._once:
            values += sum(nbytes_of({n: c}) * (self._copies[n] - 1) for n, c in inputs.items() if self._copies[n] > 1)
        return values + rows * (self._row_nbytes + texts_nbytes)

    def batch(
        self, inputs: Mapping[str, Column], rows: int, request_id: str, reply: PredictReply, at_s: float
    ) -> pa.RecordBatch:
        """The rows of a request. at_s: when it was answered, Unix seconds."""
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
    """The values of a column of the file, as many rows as were sent."""
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
    """One request, of the rows of a file that are its own: what was sent once has one row again.

    Args:
        table: The request's rows, from its first on.
        features: As the file's metadata has them.
        inputs: As the file's metadata has them.

    Raises:
        Corrupt: A value is missing.
    """
    made: dict[str, Column] = {}
    for spec in inputs:
        mine = [(max(f["column"], 0), _sent(table[f["name"]])) for f in features if f["input"] == spec.name]
        rows = len(mine[0][1]) if mine else len(table)
        if any(len(column) != rows for _, column in mine):
            raise Corrupt(f"recording: expected {rows} rows in each column of input {spec.name!r}")
        made[spec.name] = _input(mine, spec, rows)
    return made


def _sent(column: pa.ChunkedArray) -> pa.Array:
    """A column's values as they were sent: of one row where its other rows are null."""
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
        # Column after column; a request has them row by row.
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
    """A copy of an Arrow array of strings."""
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
    text = np.frombuffer(data, np.uint8)[at[0] : at[-1]] if data is not None else np.empty(0, np.uint8)
    return Strings(text.copy(), at - at[0])
