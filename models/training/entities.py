"""Give a version the entities of a training file: their entries in the manifest and their records.

The trainer's own manifest has no entities: it reads their columns from the stream that they are joined to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.entity_sections import EntityConfig
from freshet_serving.models.data.entity_table import EntityTable
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.entity_records import make_records
from freshet_serving.processor.features.evaluation import Transforms
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import (
    RECORD,
    EntityEntry,
    Manifest,
    TableEntry,
    derived,
    longest_read,
    record_fields,
    record_words,
)

Records = tuple[NDArray[np.int64], NDArray[np.int32]]
ROOM = 2
"""Lists of which features read everything may grow to this many times the longest one of the table."""


def with_entities(draft: Manifest, configs: Sequence[EntityConfig]) -> tuple[Manifest, dict[str, Records]]:
    """Return a version's manifest with its entities, and their keys and records by table.

    Args:
        draft: The version's manifest.
        configs: The entities of the training file.

    Raises:
        BadInput: A table cannot be read, or its columns cannot be records.
    """
    found: dict[str, Records] = {}
    for config in configs:
        keys, columns = EntityTable(config.name, config.data, config.key_field, config.fields).newest()
        inputs = [f.name for f in config.fields]
        entity = EntityEntry(config.name, config.key_field.name, inputs, unknown=config.unknown)
        made = columns | Transforms(replace(draft, transforms=derived(draft, entity))).run(columns)
        ragged = {f.source for f in record_fields(draft, entity) if f.ragged}
        capacities = {}
        for source in sorted(ragged):
            column, most = made[source], longest_read(draft, source)
            assert isinstance(column, Ragged)
            longest = max(1, int(np.diff(column.row_splits).max(initial=0)))
            capacities[source] = most or ROOM * longest
        entity = replace(entity, capacities=capacities)
        read_by = next((f.table for f in draft.features if f.input == entity.key and f.table), "")
        # The seed by which a feature looks the key up, so that it is hashed once.
        seed = draft.table(read_by).hash_seed if read_by and isinstance(keys, Strings) else 0
        words = record_words(record_fields(draft, entity))
        table = TableEntry(entity.table, words, len(keys), RECORD, hash_seed=seed)
        draft = replace(draft, entities=[*draft.entities, entity], tables=[*draft.tables, table])
        ids = hash_strings(keys, seed) if isinstance(keys, Strings) else np.asarray(keys)
        found[table.name] = ids, make_records(draft, entity, columns, len(ids))
    return draft, found
