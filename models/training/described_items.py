"""Give items that no event has had yet, but that an entity's table describes, a row by what it says of them.

Such an item is to be found before anybody has clicked it. Its learned numbers are the mean of all learned rows and, for
each column of the entity, the mean of what sets the items with its value apart from that, shrunken by SHRINK items; of
several values, the mean of theirs. It counts as popular as an item with one event.

Invariants
- Only rows that are made here are written, once each: what is learned later moves them like any others.
- Rows follow from the newest rows of the table and from the items' rows. Without a table that describes it, an item
  has no row before its first event, and is in no list of best items.

Costs: a look for keys without a row before each publication; with any, a pass over the items' rows. Memory of the
table's keys and columns.

Rejected: embeddings of the columns as trained parts of each item's vector: a step would move the vectors of all items
with a value, and each delta would have them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.data.entity_table import EntitySource, EntityTable, JoinedTable
from freshet_serving.models.data.keyed_rows import ids_of
from freshet_serving.models.data.source import Source
from freshet_serving.models.streams.followed_tables import FollowedTable
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package.item_rows import LOG_FLOOR, SCALE

SHRINK = 2.0

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


def described_by(source: Source, key: str) -> list[EntityTable | FollowedTable]:
    """Return the entities of a source that are keyed by a column."""
    below: object = source
    while below is not None and not isinstance(below, EntitySource):
        below = getattr(below, "events", None)
    tables: Sequence[JoinedTable] = below.tables if isinstance(below, EntitySource) else ()
    return [
        table
        for table in tables
        if isinstance(table, EntityTable | FollowedTable)
        and table.key.name == key
        and table.section == f"entities.{table.name}"
    ]


class NewestKeys(NamedTuple):
    """The newest state of a table of items.

    Attributes:
        keys: int64 [n], their keys, as their table has them.
        columns: n rows each, of what the network reads.
    """

    keys: Int64s
    columns: list[Column]


class DescribedKeys:
    """The items that tables describe."""

    def __init__(self, tables: Sequence[EntityTable | FollowedTable], seed: int) -> None:
        """Read nothing yet.

        Args:
            seed: Seed of hashes of ids that are strings.
        """
        self._tables, self._seed = tables, seed
        self._read: dict[str, tuple[object, NewestKeys]] = {}

    def newest(self) -> list[NewestKeys]:
        """Return what each table says now."""
        return [self._newest(table) for table in self._tables]

    def _newest(self, table: EntityTable | FollowedTable) -> NewestKeys:
        mark = (table.identity, table.mark) if isinstance(table, FollowedTable) else None
        known = self._read.get(table.name)
        if known is None or known[0] != mark:
            if isinstance(table, FollowedTable):
                rows = table.newest()
                keys, columns, mark = rows.keys, rows.columns, (table.identity, rows.mark)
            else:
                keys, columns = table.newest()
            ids = hash_strings(keys, self._seed) if isinstance(keys, Strings) else np.asarray(keys, np.int64)
            known = mark, NewestKeys(ids, [columns[f.name] for f in table.fields if f not in table.further])
            self._read[table.name] = known
        return known[1]


class DescribedItems:
    """The rows of items that tables describe."""

    def __init__(self, trainer: NextItemTrainer, described: DescribedKeys) -> None:
        """Make no rows yet.

        Args:
            described: The items that tables describe.
        """
        self._trainer, self._described = trainer, described

    def add(self, row: int) -> int:
        """Make the rows that are missing, and return how many.

        Args:
            row: Row of the log that their one event counts as.
        """
        made = 0
        for keys, columns in self._described.newest():
            missing = self._trainer.items.find(keys) < 0
            if missing.any():
                made += self._make(keys, columns, missing, row)
        return made

    def _make(self, keys: Int64s, columns: Sequence[Column], missing: NDArray[np.bool_], row: int) -> int:
        items, layout = self._trainer.items, self._trainer.rows
        there, rows = self._trainer.catalogue()
        learned = np.zeros((len(keys), layout.dim), np.float32)
        refs = items.find(keys)
        place = np.full(int(max(there.max(initial=-1), refs.max(initial=-1))) + 2, -1, np.int64)
        place[there] = np.arange(len(there))
        learned[~missing] = rows[place[refs[~missing]], : layout.dim]
        mean = rows[:, : layout.dim].mean(axis=0) if len(rows) else np.zeros(layout.dim, np.float32)
        vectors = described_vectors(columns, learned, missing, mean)[missing]
        new = items.insert(keys[missing], np.zeros(int(missing.sum()), np.int64))
        kept = new >= 0
        items.rows[new[kept], : layout.dim] = vectors[kept]
        # Not too old to be kept.
        items.last_step[new[kept]] = self._trainer.steps
        if self._trainer.counts is not None:
            clock = self._trainer.counts.clock or self._trainer.counts.go_on(row)
            popularity = (float(clock.logs(np.array([row]))[0]) + LOG_FLOOR) / SCALE
            items.rows[new[kept], layout.dim] = max(0.0, popularity)
        items.touch(new[kept])
        return int(kept.sum())


def described_vectors(
    columns: Sequence[Column], learned: Float32s, missing: NDArray[np.bool_], mean: Float32s
) -> Float32s:
    """Return vectors of all items by what columns say of them, float32 [n, d].

    Args:
        columns: Columns of n items; those of numbers say nothing.
        learned: float32 [n, d], learned vectors.
        missing: bool [n], items without one.
        mean: float32 [d], mean of all learned vectors.
    """
    made = np.repeat(mean[None].astype(np.float64), len(learned), axis=0)
    for column in columns:
        lists = isinstance(column, Ragged)
        lengths = np.diff(column.row_splits) if isinstance(column, Ragged) else np.ones(len(learned), np.int64)
        values = column.values if isinstance(column, Ragged) else column
        if not lists and isinstance(values, np.ndarray) and values.dtype.kind == "f":
            continue
        owner = np.repeat(np.arange(len(learned)), lengths)
        value = np.unique(ids_of(values), return_inverse=True)[1].reshape(-1)
        known = ~missing[owner]
        count = int(value.max(initial=-1)) + 1
        sums = np.zeros((count, learned.shape[1]))
        np.add.at(sums, value[known], learned[owner[known]] - made[owner[known]])
        apart = sums / (np.bincount(value[known], minlength=count)[:, None] + SHRINK)
        parts = np.zeros_like(made)
        np.add.at(parts, owner, apart[value])
        made += parts / np.maximum(lengths, 1)[:, None]
    return made.astype(np.float32)
