"""Give items that no event has had yet, but that an entity's table describes, a row by their description.

So an item can be found before anybody has clicked it. Its learned numbers are the mean of all learned rows plus, for
each column of the entity, the mean deviation of the items with its value, shrunken by SHRINK items (of several values,
the mean of theirs). It counts as popular as an item with one event.

Invariants
- Only rows made here are written, once each: training moves them later like any others.
- Rows follow from the newest rows of the table and the items' rows. An item without description has no row before its
  first event, and is in no list of best items.

Costs: a search for keys without a row before each publication; with any, a pass over the items' rows. Memory of the
table's keys and columns.

Rejected: trained embeddings of the columns in each item's vector: a step would move the vectors of all items with a
value, and each delta would have them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.entity_table import EntitySource, EntityTable, JoinedTable
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.source import Source, layer_of
from freshet_serving.models.streams.followed_tables import FollowedTable
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE

SHRINK = 2.0

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


def described_by(source: Source, key: str) -> list[EntityTable | FollowedTable]:
    joined = layer_of(source, EntitySource)
    tables: Sequence[JoinedTable] = joined.tables if joined is not None else ()
    return [
        table
        for table in tables
        if isinstance(table, EntityTable | FollowedTable)
        and table.key.name == key
        and table.section == f"entities.{table.name}"
    ]


class NewestKeys(NamedTuple):
    """The newest state of a table of items: their keys, int64 [n], and the columns that the network reads."""

    keys: Int64s
    columns: list[Column]


class DescribedKeys:
    """The items that tables describe."""

    def __init__(self, tables: Sequence[EntityTable | FollowedTable], seed: int) -> None:
        """Read nothing yet; `seed` is that of hashes of ids that are strings."""
        self._tables, self._seed = tables, seed
        self._read: dict[str, tuple[object, NewestKeys]] = {}

    def newest(self) -> list[NewestKeys]:
        return [self._newest(table) for table in self._tables]

    def _newest(self, table: EntityTable | FollowedTable) -> NewestKeys:
        mark = (table.identity, table.mark) if isinstance(table, FollowedTable) else None
        read = self._read.get(table.name)
        if read is None or read[0] != mark:
            if isinstance(table, FollowedTable):
                rows = table.newest()
                keys, columns, mark = rows.keys, rows.columns, (table.identity, rows.mark)
            else:
                keys, columns = table.newest()
            ids = hash_strings(keys, self._seed) if isinstance(keys, Strings) else np.asarray(keys, np.int64)
            read = mark, NewestKeys(ids, [columns[f.name] for f in table.fields if f not in table.further])
            self._read[table.name] = read
        return read[1]


class DescribedItems:
    """The rows of items that tables describe."""

    def __init__(self, trainer: NextItemTrainer, described: DescribedKeys) -> None:
        self._trainer, self._described = trainer, described

    def add(self, row: int) -> int:
        """Make the missing rows and return how many; their one event counts as that of `row` of the log."""
        added = 0
        for keys, columns in self._described.newest():
            missing = self._trainer.items.find(keys) < 0
            if missing.any():
                added += self._make(keys, columns, missing, row)
        return added

    def _make(self, keys: Int64s, columns: Sequence[Column], missing: NDArray[np.bool_], row: int) -> int:
        items, layout = self._trainer.items, self._trainer.rows
        live, rows = self._trainer.catalogue()
        learned = np.zeros((len(keys), layout.dim), np.float32)
        refs = items.find(keys)
        place = np.full(int(max(live.max(initial=-1), refs.max(initial=-1))) + 2, -1, np.int64)
        place[live] = np.arange(len(live))
        learned[~missing] = rows[place[refs[~missing]], : layout.dim]
        mean = rows[:, : layout.dim].mean(axis=0) if len(rows) else np.zeros(layout.dim, np.float32)
        vectors = described_vectors(columns, learned, missing, mean)[missing]
        new = items.insert(keys[missing], np.zeros(int(missing.sum()), np.int64))
        stored = new >= 0
        items.rows[new[stored], : layout.dim] = vectors[stored]
        # Exempt from eviction by age.
        items.last_step[new[stored]] = self._trainer.steps
        if self._trainer.counts is not None:
            clock = self._trainer.counts.clock or self._trainer.counts.go_on(row)
            popularity = (float(clock.logs(np.array([row]))[0]) + LOG_FLOOR) / SCALE
            items.rows[new[stored], layout.dim] = max(0.0, popularity)
        items.touch(new[stored])
        return int(stored.sum())


def described_vectors(
    columns: Sequence[Column], learned: Float32s, missing: NDArray[np.bool_], mean: Float32s
) -> Float32s:
    """Return vectors of all items, float32 [n, d], by their columns; those of numbers are ignored.

    `learned` [n, d] has the vectors of items that are not `missing` [n], and `mean` is that of all learned ones.
    """
    vectors = np.repeat(mean[None].astype(np.float64), len(learned), axis=0)
    for column in columns:
        lists = isinstance(column, Ragged)
        lengths = np.diff(column.row_splits) if isinstance(column, Ragged) else np.ones(len(learned), np.int64)
        values = column.values if isinstance(column, Ragged) else column
        if not lists and isinstance(values, np.ndarray) and values.dtype.kind == "f":
            continue
        owner = np.repeat(np.arange(len(learned)), lengths)
        value = np.unique(ids_of(values), return_inverse=True)[1].reshape(-1)
        has_vector = ~missing[owner]
        count = int(value.max(initial=-1)) + 1
        sums = np.zeros((count, learned.shape[1]))
        np.add.at(sums, value[has_vector], learned[owner[has_vector]] - vectors[owner[has_vector]])
        apart = sums / (np.bincount(value[has_vector], minlength=count)[:, None] + SHRINK)
        parts = np.zeros_like(vectors)
        np.add.at(parts, owner, apart[value])
        vectors += parts / np.maximum(lengths, 1)[:, None]
    return vectors.astype(np.float32)
