"""Convert the columns of a schema to Arrow arrays of one type each, and to batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_serving.models.data import arrow
from freshet_serving.models.data.source import ONE_OF, Batch, Schema

TEXT_TYPES = {
    "id": arrow.TEXT_ID,
    "float": pa.float64(),
    "string": pa.string(),
    "ids": pa.string(),
    "strings": pa.string(),
    "floats": pa.string(),
    "label": pa.float64(),
    "weight": pa.float64(),
}
"""Types that text cells are parsed as; lists are split later."""


class CanonicalColumns:
    """The columns to read from a table: features, labels, weight and time, in this order; `text` if cells are text."""

    def __init__(self, schema: Schema, text: bool) -> None:
        self.schema, self.text = schema, text
        self._asked = {f.name: f.asked for f in schema.fields}
        self.wanted = [(f.name, f.kind) for f in schema.fields] + [(name, "label") for name in schema.labels]
        self.wanted += [(schema.weight, "weight")] * bool(schema.weight) + [(schema.time, "time")] * bool(schema.time)

    def check(self, types: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the Arrow type to read each column as, given its own; raise BadInput if one does not fit its kind."""
        read = {}
        for name, kind in self.wanted:
            read[name] = stored = types[name]
            if self.text and kind in TEXT_TYPES:
                boolean = kind in ("label", "weight") and pa.types.is_boolean(stored)
                read[name] = stored if boolean else TEXT_TYPES[kind]
            elif not (kind in ONE_OF and arrow.is_text(stored)):
                arrow.check_type(stored, kind, name, self._asked.get(name, ""))
                if self.text and not pa.types.is_temporal(stored):
                    read[name] = pa.float64()
        return read

    def arrays(self, chunk: pa.RecordBatch, where: arrow.Where) -> list[pa.Array]:
        arrays = []
        for name, kind in self.wanted:
            array = chunk.column(name)
            if kind in ONE_OF and arrow.is_text(array.type):
                array = arrow.split_text(array, kind, name, where, self.schema.list_separator)
            arrays.append(arrow.canonical(array, kind, name, where))
        return arrays

    def batch(self, arrays: Sequence[pa.Array], start: int) -> Batch:
        """Return canonical arrays, in the order of `wanted`, as a batch at position `start`."""
        values: list[Any] = [arrow.column(array, kind) for array, (_, kind) in zip(arrays, self.wanted)]
        columns, rest = dict(zip(self.schema.names, values)), values[len(self.schema.fields) :]
        labels, rest = rest[: len(self.schema.labels)], rest[len(self.schema.labels) :]
        several = np.empty((len(arrays[0]), len(labels)), np.float32)
        label = labels[0] if len(labels) == 1 else np.stack(labels, axis=1, out=several) if labels else several
        weight = rest.pop(0) if self.schema.weight else None
        return Batch(columns, label, rest[0] if rest else None, start, weight)


def join_parts(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    return list(parts[0]) if len(parts) == 1 else [pa.concat_arrays(column) for column in zip(*parts)]
