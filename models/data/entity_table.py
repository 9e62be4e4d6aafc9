"""Tables of entities: training reads from them what a request leaves out, and versions are published with them.

A key's row is its last one in the file; with a time column, its last one at or before the event. A key without one has
the values that stand for missing ones (processor.features.entity_records), as in serving.

Invariants
- The columns that training sees for a key are those that its record is made of, by the same code.
- A batch depends on its rows and times alone, not on how the stream was cut.

Memory: the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.formats import DataConfig, format_of
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Schema, Source
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.processor.columns import Column, Ragged, Strings, join_columns, take_rows
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Manifest

READ_ROWS = 1 << 16
LOOKED_AT_ROWS, MOST_UNKNOWN = 4096, 0.5
"""A line is due if the table lacks more than this share of the keys of the first rows."""
KINDS = {
    ("int64", False): "id",
    ("int64", True): "ids",
    ("float32", False): "float",
    ("string", False): "string",
    ("string", True): "strings",
}
Int64s = NDArray[np.int64]


class EntityTable:
    """The rows of one entity's table, in memory.

    Attributes:
        name: Name of the entity.
        section: The section that describes it.
        key: The column with its keys.
        fields: Its other columns.
    """

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
        """Read the table.

        Args:
            name: Name of the entity.
            data: Where it is; with a time column its rows are sorted by it.
            key: The column with its keys.
            fields: Its other columns.
            asked: The place that asks for it, as messages begin; "" for the section.
            section: The section that describes it; "" for entities.<name>.
            once: The table must have each key once.

        Raises:
            BadInput: The table cannot be read, lacks a column, is empty, or has a key twice that it must have once.
        """
        self.name, self.key, self.fields = name, key, tuple(fields)
        self.section = section = section or f"entities.{name}"
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
        self._key_values = columns.pop(key.name)
        ids = ids_of(self._key_values)
        order = np.argsort(ids, kind="stable")
        self._ids, self._order = ids[order], order
        repeated = int((self._ids[1:] == self._ids[:-1]).sum())
        if once and repeated:
            raise BadInput(
                f"{section}.path: expected each {key.name} once, got {repeated} more rows of the same; name the column"
                f" with the rows' times in {section}.time, or keep one row of each"
            )
        times = [b.time for b in batches if b.time is not None]
        self._times = np.concatenate(times)[order] if times else None
        # One more row, of missing values.
        self._missing = len(ids)
        self._columns = {f.name: join_columns([columns[f.name], missing_values(f)]) for f in fields}

    def newest(self) -> tuple[Column, dict[str, Column]]:
        """Return all keys, each once, and the columns of their last rows."""
        last = np.flatnonzero(np.append(self._ids[1:] != self._ids[:-1], True))
        rows = self._order[last]
        return take_rows(self._key_values, rows), {name: take_rows(c, rows) for name, c in self._columns.items()}

    def has(self, keys: Column) -> NDArray[np.bool_]:
        """Return which keys have a row, whatever its time."""
        ids = ids_of(keys)
        return np.searchsorted(self._ids, ids, "left") < np.searchsorted(self._ids, ids, "right")

    def columns(self, keys: Column, times: NDArray[np.float64] | None) -> dict[str, Column]:
        """Return the columns of keys.

        Args:
            keys: The keys, as in the key's column.
            times: Time of each, for tables with a time column.
        """
        ids = ids_of(keys)
        low = np.searchsorted(self._ids, ids, "left")
        high = np.searchsorted(self._ids, ids, "right")
        first = low.copy()
        if self._times is not None:
            assert times is not None
            # The number of a key's rows at or before the time, by bisection of its part of the table.
            while (open_ := low < high).any():
                middle = np.where(open_, (low + high) // 2, 0)
                before = open_ & (self._times[middle] <= times)
                low = np.where(before, middle + 1, low)
                high = np.where(open_ & ~before, middle, high)
        rows = np.where(high > first, self._order[np.maximum(high, 1) - 1], self._missing)
        return {name: take_rows(column, rows) for name, column in self._columns.items()}


def entity_fields(manifest: Manifest, name: str) -> tuple[Field, list[Field]]:
    """Return the columns of an entity of a published version as readers take them: its key, and the others.

    Args:
        manifest: The version's manifest.
        name: The entity.

    Raises:
        BadInput: The version has no such entity, or no reader makes one of its columns.
    """
    entity = next((e for e in manifest.entities if e.name == name), None)
    if entity is None:
        known = ", ".join(e.name for e in manifest.entities) or "none"
        raise BadInput(f"entity {name[:64]!r} does not exist; the model has {known}")
    specs = [manifest.input(column) for column in (entity.key, *entity.inputs)]
    if wide := next((spec.name for spec in specs if spec.columns), ""):
        raise BadInput(f"entity {name!r}: {wide!r} has several values a row: publish it with the Publisher")
    key, *fields = [Field(spec.name, KINDS[spec.dtype, spec.ragged], f"column {spec.name!r}") for spec in specs]
    return key, fields


def read_entity(manifest: Manifest, name: str, path: str) -> EntityTable:
    """Read the table of an entity of a published version.

    Args:
        manifest: The version's manifest.
        name: The entity.
        path: File, folder or glob.

    Raises:
        BadInput: The version has no such entity, or the table does not fit.
    """
    key, fields = entity_fields(manifest, name)
    return EntityTable(name, DataConfig(path, format_of(path), ()), key, fields, f"entity {name!r}")


class EntitySource:
    """A stream of rows with the columns of entities joined to it."""

    def __init__(self, source: Source, tables: Sequence[EntityTable], fields: Sequence[Field]) -> None:
        """Join tables to a source.

        Args:
            source: The rows, with the keys and without the entities' columns.
            tables: The tables.
            fields: All columns of the batches, in order.
        """
        self._source, self._tables = source, tables
        inner = source.schema
        self.schema = Schema(tuple(fields), inner.label, inner.time, inner.weight)

    @property
    def events(self) -> Source:
        """The rows without the entities' columns."""
        return self._source

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        """Yield batches as Source.batches does."""
        for batch in self._source.batches(rows, start):
            yield self._joined(batch)

    def arriving(self, rows: int, start: int) -> Iterator[Batch | None]:
        """Yield batches as FollowedSource.arriving does."""
        source: Any = self._source
        for batch in source.arriving(rows, start):
            yield None if batch is None else self._joined(batch)

    def _joined(self, batch: Batch) -> Batch:
        columns = dict(batch.columns)
        for table in self._tables:
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
        for table in self._tables:
            unknown = 1.0 - float(table.has(batch.columns[table.key.name]).mean())
            if unknown > MOST_UNKNOWN:
                lines.append(
                    f"{table.section}: {unknown:.0%} of the first {len(batch):,} rows have keys ({table.key.name}) that"
                    " the table lacks, so its columns are missing there: check that both have the same keys"
                )
        return lines


def ids_of(keys: Column) -> Int64s:
    """Return keys as int64; strings by their hash without a seed."""
    if isinstance(keys, Strings):
        hashed: Int64s = hash_strings(keys, 0)
        return hashed
    assert isinstance(keys, np.ndarray)
    return np.ascontiguousarray(keys, np.int64)


def missing_values(field: Field) -> Column:
    """Return one row of a column that has no value, as processor.features.entity_records has it."""
    if field.kind == "ids":
        return Ragged(np.empty(0, np.int64), np.zeros(2, np.int64))
    if field.kind == "strings":
        return Ragged(Strings.of([]), np.zeros(2, np.int64))
    if field.kind == "string":
        return Strings.of([""])
    return np.full(1, np.nan, np.float32) if field.kind == "float" else np.zeros(1, np.int64)
