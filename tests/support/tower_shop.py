"""The model of tests.support.towers with columns to filter on: versions and deltas from plain arrays.

What they hold is tests.programs.list_checker.Contents.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.processor.package import RECORD, Delta, Input, TableDelta, TableEntry, record_layout
from freshet_serving.processor.repository import DENSE, VersionWriter, table_file
from freshet_serving.processor.tables.table import packed
from tests.programs.list_checker import BRANDS, TAGS
from tests.support import towers
from tests.support.packages import write_executables

FILTERS = [
    Input("stock", "int64"),
    Input("rating", "float32"),
    Input("brand", "string"),
    Input("tags", "string", ragged=True),
]


def manifest(rows=None):
    described = towers.manifest(rows=rows)
    (entity,) = described.entities
    described = replace(described, entities=[replace(entity, filters=FILTERS, text_nbytes=96)])
    words = record_layout(described, described.entities[0]).words
    records = TableEntry(towers.CATALOGUE, words, (rows or {}).get(towers.CATALOGUE, 0), RECORD)
    return replace(described, tables=[*(t for t in described.tables if t.name != towers.CATALOGUE), records])


def records(contents, positions):
    described = manifest()
    columns = {
        "category": [np.repeat(np.arange(len(row)), row).tolist() for row in contents.of_category[positions]],
        "price": contents.price[positions],
        "stock": contents.stock[positions],
        "rating": contents.rating[positions],
        "brand": [BRANDS[n] if n >= 0 else "" for n in contents.brand[positions]],
        "tags": [[TAGS[n] for n in np.flatnonzero(row)] for row in contents.tags[positions]],
    }
    return entity_rows(described, described.entities[0], columns, len(positions))


def write_shop(repository, contents):
    """Commits a version that holds these contents; returns its folder."""
    listed = np.flatnonzero(contents.there)
    rows = {
        "user": (np.arange(len(contents.users)), contents.users),
        "item": (contents.ids, contents.rows),
        "category": (np.arange(len(contents.categories)), contents.categories),
    }
    described = manifest({name: len(keys) for name, (keys, _) in rows.items()} | {towers.CATALOGUE: len(listed)})
    with VersionWriter(Path(repository), towers.MODEL, 1) as writer:
        for name, (keys, values) in rows.items():
            writer.tensors(table_file(name), packed(keys.astype(np.int64), values, "float32"))
        tensors = packed(contents.ids[listed], records(contents, listed), RECORD)
        writer.tensors(table_file(towers.CATALOGUE), tensors)
        writer.tensors(DENSE, contents.dense)
        write_executables(writer, towers.make_artefact(described.width))
        return writer.commit(described)


def shop_delta(contents, change, step, parent):
    """The delta that a change of tests.programs.list_checker makes, whose contents are given."""
    ids = contents.ids

    def ordered(numbers):
        return np.array(sorted(numbers), np.int64)

    def delta_of(keys, values, removed=()):
        return TableDelta(keys, values, ordered(removed))

    items, put, users, categories = map(ordered, (change.items, change.put, change.users, change.categories))
    tables = {
        "item": delta_of(ids[items], contents.rows[items], ids[ordered(change.bare)]),
        "user": delta_of(users, contents.users[users]),
        "category": delta_of(categories, contents.categories[categories], change.dropped),
        towers.CATALOGUE: delta_of(ids[put], records(contents, put), ids[ordered(change.removed)]),
    }
    tables = {name: table for name, table in tables.items() if len(table.keys) + len(table.removed)}
    weights = {name: contents.dense[name] for name in change.dense}
    return Delta(towers.MODEL, 1, step, parent, tables, weights, published_at=time.time())
