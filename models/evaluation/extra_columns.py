"""Columns of the data that are no features, beside the batches of those that are.

They are read by a reader of their own, in step with the batches that they are asked for: it is opened where a batch
does not continue the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from freshet_serving.models.data.formats import DataConfig, label_names
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Source
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput


class ExtraColumns:
    """The columns called `names`, for batches of a source."""

    def __init__(self, names: Sequence[str], source: Source, data: DataConfig, batch_rows: int) -> None:
        """data: where the columns lie that the source does not give. batch_rows: of its batches. Raises BadInput where
        there is no such column."""
        self._names = list(dict.fromkeys(names))
        self._own = [name for name in self._names if name not in source.schema.names]
        fields = [_field(data, name) for name in self._own]
        self._source = open_source(data, fields) if fields else None
        self._rows = batch_rows
        self._batches: Iterator[Batch] = iter(())
        self._next = -1

    def of(self, batch: Batch) -> dict[str, Column]:
        """The columns of a batch's rows, by name."""
        found = {name: batch.columns[name] for name in self._names if name not in self._own}
        if self._source is None:
            return found
        if batch.start != self._next:
            self._batches = self._source.batches(self._rows, batch.start)
        beside = next(self._batches, None)
        if beside is None or len(beside) < len(batch):
            raise BadInput(f"data: column {self._own[0]!r}: as many rows as before wanted; the files have changed")
        # A batch that was cut short is continued by none of this reader's.
        self._next = beside.end if len(beside) == len(batch) else -1
        return found | beside.slice(0, len(batch)).columns


def _field(data: DataConfig, name: str) -> Field:
    """The column as whatever it can be read as; text where cells are text. Raises BadInput."""
    if name in (*label_names(data), data.time):
        raise BadInput(f"evaluate: a column other than data.label and data.time wanted, got {name!r}")
    refused = BadInput(f"evaluate: column {name!r} cannot be read")
    for kind in ("string",) if data.format == "csv" else ("id", "string", "float", "ids", "strings"):
        try:
            open_source(data, [Field(name, kind)])
        except BadInput as error:
            refused = error
        else:
            return Field(name, kind)
    raise BadInput(f"evaluate: {refused}")
