"""Join to a table of rows what training adds to it: the columns of entities, then the histories of sequences.

Histories are made of rows that have the entities' columns already, so an event of a history may have them too.
Recordings have the columns of entities as they were used, so nothing is joined to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from freshet_serving.models.data.entity_table import EntitySource, EntityTable
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.sequence_columns import SequenceFeature, with_sequences
from freshet_serving.models.data.source import Field, Source, wanted_fields


class JoinedEntity(Protocol):
    """The section of an entity (models.config.entity_sections.EntityConfig)."""

    @property
    def name(self) -> str: ...
    @property
    def data(self) -> DataConfig: ...
    @property
    def key_field(self) -> Field: ...
    @property
    def fields(self) -> tuple[Field, ...]: ...


def joined_rows(
    open_fields: Callable[[tuple[Field, ...]], Source],
    features: Sequence[SequenceFeature],
    entities: Sequence[JoinedEntity],
    more: Sequence[Field] = (),
) -> Source:
    """Return rows with all columns that features read.

    Args:
        open_fields: Opens the rows with these columns of their own.
        features: The features, those of sequences among them.
        entities: The entities whose tables are joined.
        more: Columns besides.

    Raises:
        BadInput: A table cannot be read, or lacks a column.
    """
    fields = tuple(dict.fromkeys([*wanted_fields(features), *more]))
    joined = {field for entity in entities for field in entity.fields}
    source = open_fields(tuple(field for field in fields if field not in joined))
    recorded: frozenset[str] = getattr(source, "recorded", frozenset())
    if entities and recorded:
        entities = [entity for entity in entities if not {field.name for field in entity.fields} <= recorded]
        joined = {field for entity in entities for field in entity.fields}
        source = open_fields(tuple(field for field in fields if field not in joined))
    if entities:
        tables = [EntityTable(e.name, e.data, e.key_field, e.fields) for e in entities]
        source = EntitySource(source, tables, fields)
    return with_sequences(source, features, more)
