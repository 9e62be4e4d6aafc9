"""Join to a table of rows what training adds to it: the columns of entities, then the histories of sequences.

Histories are made of rows that have the entities' columns already, so an event of a history may have them too.
Recordings have the columns of entities as they were used, so nothing is joined to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from freshet_serving.models.data.entity_table import EntitySource, EntityTable, JoinedTable
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.sequence_columns import SequenceFeature, with_sequences
from freshet_serving.models.data.source import Field, Source, wanted_fields


class JoinedSection(Protocol):
    """A section whose table is joined (models.config.entity_sections, user_table_sections)."""

    @property
    def name(self) -> str: ...
    @property
    def section(self) -> str: ...
    @property
    def once(self) -> bool: ...

    @property
    def data(self) -> DataConfig: ...
    @property
    def key_field(self) -> Field: ...
    @property
    def fields(self) -> tuple[Field, ...]: ...
    @property
    def further(self) -> tuple[Field, ...]: ...


def joined_rows(
    open_fields: Callable[[tuple[Field, ...]], Source],
    features: Sequence[SequenceFeature],
    entities: Sequence[JoinedSection],
    more: Sequence[Field] = (),
    folder: Path | None = None,
    open_table: Callable[[JoinedSection], JoinedTable] | None = None,
) -> Source:
    """Return rows with all columns that features read.

    Args:
        open_fields: Opens the rows with these columns of their own.
        entities: The entities and users whose tables are joined. A key need not be among the features.
        folder: Folder for what histories cannot keep in memory; by default that of temporary files.
        open_table: Opens a table; by default it is read once.

    Raises:
        BadInput: A table cannot be read, or lacks a column.
    """
    fields = tuple(dict.fromkeys([*wanted_fields(features), *more]))
    source = open_fields(_row_fields(fields, entities))
    recorded: frozenset[str] = getattr(source, "recorded", frozenset())
    if entities and recorded:
        entities = [entity for entity in entities if not {field.name for field in entity.fields} <= recorded]
        source = open_fields(_row_fields(fields, entities))
    if entities:
        source = EntitySource(source, [(open_table or _read_once)(entity) for entity in entities], fields)
    return with_sequences(source, features, more, folder)


def _read_once(e: JoinedSection) -> JoinedTable:
    return EntityTable(e.name, e.data, e.key_field, e.fields, section=e.section, once=e.once)


def _row_fields(fields: Sequence[Field], entities: Sequence[JoinedSection]) -> tuple[Field, ...]:
    """Return the columns that the rows themselves have: those of no entity, and the keys."""
    joined = {field for entity in entities for field in entity.fields}
    keys = [entity.key_field for entity in entities]
    return tuple(dict.fromkeys([*(field for field in fields if field not in joined), *keys]))
