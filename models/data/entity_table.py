"""Tables of entities: training reads from them what a request leaves out, and versions are published with them.

A key's row is its last one in the file; with a time column, its last one at or before the event. A key without one has
the values that stand for missing ones (processor.features.entity_records), as in serving. The whole table is in memory.

Invariants
- The columns that training sees for a key are those that its record is made of, by the same code.
- A batch depends on its rows and times alone, not on how the stream was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.formats import STREAMS, DataConfig, format_of
from freshet_serving.models.data.keyed_rows import KeyedRows, ids_of
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Schema, Source
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.processor.columns import Column, join_columns, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Manifest, column_specs

READ_ROWS = 1 << 16
LOOKED_AT_ROWS, MOST_UNKNOWN = 4096, 0.5
"""A line is due if the table lacks a larger share of the keys of the first rows."""
KINDS = {
    ("int64", False): "id",
    ("int64", True): "ids",
    ("float32", False): "float",
    ("string", False): "string",
    ("string", True): "strings",
}


class JoinedTable(Protocol):
    @property
    def section(self) -> str: ...

    @property
    def key(self) -> Field: ...

    def has(self, keys: Column) -> NDArray[np.bool_]:
        """Return which keys have a row, whatever its time."""
        ...

    def columns(self, keys: Column, times: NDArray[np.float64] | None) -> dict[str, Column]:
        """Return the columns of keys; `times` are needed for tables with a time column."""
        ...

    def refresh(self, event_time: float | None) -> None:
        """Take over changes of the table; `event_time` is of the newest event that was read, None without times."""
        ...


def read_rows(
    data: DataConfig, key: Field, fields: Sequence[Field], section: str, asked: str = "", once: bool = False
) -> KeyedRows:
    """Read the rows of a stored table.

    Args:
        data: Where it is; with a time column its rows are sorted by it.
        section: The section that describes it.
        asked: The place that asks for it, as messages begin; "" for the section.
        once: The table must have each key once.

    Raises:
        BadInput: The table cannot be read, lacks a column, is empty, or has a key twice that it must have once.
    """
    if data.format in STREAMS:
        raise BadInput(
            f"{section}.path: expected a file, folder or glob, got a stream, which only freshet train --follow reads"
        )
    try:
        source = open_source(data, [key, *fields])
        batches = list(source.bounded() if isinstance(source, TableSource) else source.batches(READ_ROWS))
    except BadInput as error:
        place, colon, rest = str(error).partition(": ")
        if not place.startswith("data."):
            raise BadInput(f"{asked or section}: {error}") from None
        # The keys of [data] that an entity has too.
        raise BadInput(f"{asked or section + place.removeprefix('data')}{colon}{rest}") from None
    if not batches:
        raise BadInput(f"{asked or f'{section}.path'}: expected rows, got an empty table")
    columns = {f.name: join_columns([b.columns[f.name] for b in batches]) for f in (key, *fields)}
    times = [b.time for b in batches if b.time is not None]
    rows = KeyedRows(fields, columns[key.name], columns, np.concatenate(times) if times else None)
    if once and (repeated := rows.repeated()):
        raise BadInput(
            f"{section}.path: expected each {key.name} once, got {repeated} more rows of the same; name the column"
            f" with the rows' times in {section}.time, or keep one row of each"
        )
    return rows


class EntityTable:
    """The rows of one entity's table, in memory, as they were when it was read; `fields` are without the key."""

    further: tuple[Field, ...] = ()

    def __init__(
        self,
        name: str,
        data: DataConfig,
        key: Field,
        fields: Sequence[Field],
        asked: str = "",
        section: str = "",
        once: bool = False,
    ) -> None:
        """Read the table as read_rows does; `section` is "" for entities.<name>."""
        self.name, self.key, self.fields = name, key, tuple(fields)
        self.section = section or f"entities.{name}"
        self._rows = read_rows(data, key, fields, self.section, asked, once)

    def newest(self) -> tuple[Column, dict[str, Column]]:
        """Return all keys, each once, and the columns of their last rows."""
        rows = self._rows.newest
        return take_rows(self._rows.keys, rows), self._rows.take(rows)

    def has(self, keys: Column) -> NDArray[np.bool_]:
        return np.isin(ids_of(keys), self._rows.ids)

    def columns(self, keys: Column, times: NDArray[np.float64] | None) -> dict[str, Column]:
        return self._rows.take(self._rows.rows(ids_of(keys), times))

    def refresh(self, event_time: float | None) -> None:
        """Do nothing: the table is read once."""


def entity_fields(manifest: Manifest, name: str) -> tuple[Field, list[Field]]:
    """Return an entity's key and other columns in a published version, as readers take them. Raises BadInput."""
    entity = next((e for e in manifest.entities if e.name == name), None)
    if entity is None:
        names = ", ".join(e.name for e in manifest.entities) or "none"
        raise BadInput(f"entity {name[:64]!r} does not exist; the model has {names}")
    records = (spec for spec in column_specs(manifest, entity) if spec.name != entity.key)
    specs = [manifest.input(entity.key), *records]
    if wide := next((spec.name for spec in specs if spec.columns), ""):
        raise BadInput(f"entity {name!r}: {wide!r} has several values a row: publish it with the Publisher")
    key, *fields = [Field(spec.name, KINDS[spec.dtype, spec.ragged], f"column {spec.name!r}") for spec in specs]
    return key, fields


def read_entity(manifest: Manifest, name: str, path: str) -> EntityTable:
    """Read the table (file, folder or glob) of an entity of a published version. Raises BadInput."""
    key, fields = entity_fields(manifest, name)
    return EntityTable(name, DataConfig(path, format_of(path), ()), key, fields, f"entity {name!r}")


class EntitySource:
    def __init__(self, source: Source, tables: Sequence[JoinedTable], fields: Sequence[Field]) -> None:
        """Join tables to rows that have the keys; `fields` are all columns of the batches, in order."""
        self._source, self.tables = source, tables
        inner = source.schema
        self.schema = Schema(tuple(fields), inner.label, inner.time, inner.weight)

    @property
    def events(self) -> Source:
        return self._source

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        for batch in self._source.batches(rows, start):
            self._refresh(None)
            yield self._joined(batch)

    def arriving(self, rows: int, start: int) -> Iterator[Batch | None]:
        """Yield batches as FollowedSource.arriving does, with the columns as of the moment that a batch arrived."""
        source: Any = self._source
        newest: float | None = None
        for batch in source.arriving(rows, start):
            if batch is not None and batch.time is not None:
                newest = max(float(batch.time.max()), -np.inf if newest is None else newest)
            self._refresh(newest)
            yield None if batch is None else self._joined(batch)

    def _refresh(self, event_time: float | None) -> None:
        for table in self.tables:
            table.refresh(event_time)

    def _joined(self, batch: Batch) -> Batch:
        columns = dict(batch.columns)
        for table in self.tables:
            columns |= table.columns(columns[table.key.name], batch.time)
        return replace(batch, columns={name: columns[name] for name in self.schema.names})

    def count_rows(self) -> int | None:
        return self._source.count_rows()

    def unknown_lines(self) -> list[str]:
        """Return a line for each table that lacks most keys of the first rows."""
        lines: list[str] = []
        batch = next(iter(self._source.batches(LOOKED_AT_ROWS)), None)
        if batch is None:
            return lines
        for table in self.tables:
            unknown = 1.0 - float(table.has(batch.columns[table.key.name]).mean())
            if unknown > MOST_UNKNOWN:
                lines.append(
                    f"{table.section}: {unknown:.0%} of the first {len(batch):,} rows have keys ({table.key.name}) that"
                    " the table lacks, so its columns are missing there: check that both have the same keys"
                )
        return lines
