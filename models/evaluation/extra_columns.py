"""Read columns that are not features, in step with the batches of the features.

A second reader supplies them, which is reopened when a batch does not follow the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from freshet_serving.models.data.formats import TABLES, DataConfig, label_names
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Source
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput


class ExtraColumns:
    def __init__(self, names: Sequence[str], source: Source, data: DataConfig, batch_rows: int) -> None:
        """Open a reader of `data` for the columns that the source, read by batch_rows, lacks. Raises BadInput."""
        self._names = list(dict.fromkeys(names))
        self._missing = [name for name in self._names if name not in source.schema.names]
        fields = [_field(data, name) for name in self._missing]
        self._source = open_source(data, fields) if fields else None
        self._rows = batch_rows
        self._batches: Iterator[Batch] = iter(())
        self._next = -1

    def of(self, batch: Batch) -> dict[str, Column]:
        columns = {name: batch.columns[name] for name in self._names if name not in self._missing}
        if self._source is None:
            return columns
        if batch.start != self._next:
            self._batches = self._source.batches(self._rows, batch.start)
        beside = next(self._batches, None)
        if beside is None or len(beside) < len(batch):
            raise BadInput(f"data: column {self._missing[0]!r} has fewer rows than before; the files have changed")
        # After a shortened batch this reader is past the next row, so it has to be reopened.
        self._next = beside.end if len(beside) == len(batch) else -1
        return columns | beside.slice(0, len(batch)).columns


def _field(data: DataConfig, name: str) -> Field:
    """Return the column with the first kind it can be read as; CSV columns are text. Raises BadInput."""
    if name in (*label_names(data), data.time):
        raise BadInput(f"evaluate: expected a column other than data.label and data.time, got {name!r}")
    refused = BadInput(f"evaluate: column {name!r} cannot be read")
    for kind in ("string",) if data.format == "csv" else _kinds(data, name):
        field = Field(name, kind, f"column {name!r}")
        try:
            open_source(data, [field])
        except BadInput as error:
            refused = error
        else:
            return field
    raise BadInput(f"evaluate: {refused}")


def _kinds(data: DataConfig, name: str) -> tuple[str, ...]:
    """Return the kinds to try: that of the column's type, if the data have types."""
    kinds = ("float", "id", "string", "ids", "strings")
    if data.format not in TABLES:
        return kinds
    from freshet_serving.models.data.tabular import infer_fields

    try:
        (field,) = infer_fields(data, [name])
    except BadInput as error:
        raise BadInput(f"evaluate: {error}") from None
    return tuple(kind for kind in kinds if kind == field.kind)
