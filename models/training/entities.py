"""Give a version the entities of a training file: their entries in the manifest and their records.

The trainer's own manifest has no entities: it reads their columns from the stream that joins them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.entity_sections import EntityConfig
from freshet_serving.models.data.entity_table import EntityTable
from freshet_serving.models.streams.followed_tables import FollowedTable
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    NOT_GIVEN,
    RECORD,
    EntityEntry,
    Input,
    Manifest,
    TableEntry,
    derived,
    longest_read,
    names_keys,
    record_layout,
    text_nbytes,
)

log = logging.getLogger("freshet.training")

Records = tuple[NDArray[np.int64], NDArray[np.int32]]
ROOM = 2
"""Lists of which features read everything, and texts, may grow to this multiple of the table's longest one."""
STRING_NBYTES = 16
"""Further bytes for each string, for longer texts of later deltas."""
DTYPES = {"id": "int64", "ids": "int64", "string": "string", "strings": "string", "float": "float32"}
RAGGED = ("ids", "strings")
MAX_WORDS = 4096


def with_entities(
    draft: Manifest, configs: Sequence[EntityConfig], followed: Sequence[FollowedTable] = ()
) -> tuple[Manifest, dict[str, Records]]:
    """Return a version's manifest with its entities, and their keys and records by table; reads unfollowed ones."""
    records: dict[str, Records] = {}
    read = {i.name for i in draft.inputs}
    # Columns of histories' events come with the histories in requests.
    for config in [c for c in configs if c.filters or any(f.name in read for f in c.fields)]:
        keys, columns = _newest(config, followed)
        entity = _entry(config, read)
        if names_keys(entity):
            columns = {**columns, entity.key: keys}
        with_derived = columns | Transforms(replace(draft, transforms=derived(draft, entity))).run(columns)
        layout = record_layout(draft, replace(entity, text_nbytes=0))
        capacities = {}
        for f in (*layout.sources, *layout.given):
            if f.ragged:
                column, most = with_derived[f.source], 0 if f in layout.given else longest_read(draft, f.source)
                assert isinstance(column, Ragged)
                longest = max(1, int(np.diff(column.row_splits).max(initial=0)))
                capacities[f.source] = most or ROOM * longest
        entity = _with_texts(draft, replace(entity, capacities=capacities, text_nbytes=0), columns, len(keys))
        read_by = next((f.table for f in draft.features if f.input == entity.key and f.table), "")
        # The seed of a feature that looks up the key, so that it is hashed once.
        seed = draft.table(read_by).hash_seed if read_by and isinstance(keys, Strings) else 0
        words = record_layout(draft, entity).words
        table = TableEntry(entity.table, words, len(keys), RECORD, hash_seed=seed)
        draft = replace(draft, entities=[*draft.entities, entity], tables=[*draft.tables, table])
        ids = hash_strings(keys, seed) if isinstance(keys, Strings) else np.asarray(keys)
        records[table.name] = ids, make_records(draft, entity, columns, len(ids))
    return draft, records


def _entry(config: EntityConfig, read: Collection[str]) -> EntityEntry:
    key, inputs = config.key_field, [f.name for f in config.fields]
    if not config.filters:
        return EntityEntry(config.name, key.name, inputs, unknown=config.unknown)
    fields = {f.name: f for f in (*config.fields, *config.further, *([key] if key.kind == "string" else []))}
    # Filters also use columns that no feature reads, and so no request sends.
    names = [name for name in fields if name in config.filters or name not in inputs or name not in read]
    filters = [Input(name, DTYPES[fields[name].kind], ragged=fields[name].kind in RAGGED) for name in names]
    inputs = [name for name in inputs if name in read]
    return EntityEntry(config.name, key.name, inputs, unknown=config.unknown, filters=filters)


def _newest(config: EntityConfig, followed: Sequence[FollowedTable]) -> tuple[Column, dict[str, Column]]:
    for table in followed:
        if table.section == config.section:
            rows = table.newest()
            return rows.keys, rows.columns
    return EntityTable(config.name, config.data, config.key_field, (*config.fields, *config.further)).newest()


def _with_texts(draft: Manifest, entity: EntityEntry, columns: Mapping[str, Column], rows: int) -> EntityEntry:
    """Return the entity with room for the texts of its columns; without its columns as given if they do not fit."""
    layout = record_layout(draft, entity)
    texts = [columns[column.name] for column in layout.texts]
    longest = text_nbytes(texts, layout.texts, rows) if texts else 0
    strings = sum(column.strings or 1 for column in layout.texts)
    room, least = 4 * (MAX_WORDS - layout.text_offset), 4 * sum(1 + column.strings for column in layout.texts)
    if least <= room:
        return replace(entity, text_nbytes=min(ROOM * longest + STRING_NBYTES * strings, room))
    if entity.filters:
        raise BadInput(
            f"entities.{entity.name}.filters: expected columns whose texts fit into {room} bytes a key, got texts of"
            f" {least}: name fewer columns"
        )
    log.warning(
        "entities.%s: too many columns to keep their values as given; recordings will have only the key", entity.name
    )
    bound = {f.source for f in layout.sources}
    capacities = {name: n for name, n in entity.capacities.items() if name in bound}
    return replace(entity, capacities=capacities, text_nbytes=NOT_GIVEN)
