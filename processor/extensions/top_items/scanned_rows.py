"""The rows that a source ranks, and the vectors that they are multiplied with, of one pinned state.

    model         the items' rows or vectors, by the users' vectors
    like          two towers: the items' vectors, by those of the items to be like. Else as the model
    popular, new  the rows of the source's table (item_sources), by vectors that are 1 in one column

Items are those of the state's own table of items: a row of a source's table whose item is not there does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.best_items import RankedTable
from freshet_serving.processor.extensions.top_items.item_sources import ItemSource
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.extensions.top_items.section import ItemRanking
from freshet_serving.processor.extensions.top_items.vector_table import ReadVectors
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.kernels import rows as row_kernels
from freshet_serving.processor.versions.replica import State

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class ScannedRows(NamedTuple):
    """The rows and vectors of one scan.

    Attributes:
        vectors: float32 [n, rows.columns], one for each user.
        items: The descriptor of the items' table, if the rows are not those of all items.
        there: bool [n], whether there is the item that a user's list is to be like; None if there is none.
        number: The source whose numbers the products are; None for others.
        by_vectors: The items' vectors, if the products are scores by the model's own form.
        generation: The generation that vectors are of, where they lag.
    """

    rows: RankedTable
    vectors: Float32s
    items: Int64s | None = None
    there: Bools | None = None
    number: ItemSource | None = None
    by_vectors: ReadVectors | None = None
    generation: Generation | None = None

    @classmethod
    def of(
        cls, ranking: ItemRanking, name: str, state: State, vectors: Float32s | None, like: Int64s | None, users: int
    ) -> ScannedRows:
        """Return what a source ranks in a state that is pinned; raise NotReady if there are no vectors of items yet.

        Vectors, float32 [users, columns], are what the network has computed; None where it was not run. `like`, int64
        [users], are keys of the items to be like.
        """
        tables, arrays, epoch = state.tables, state.arrays, state.epoch
        if (source := ranking.sources.get(name)) is not None:
            rows = RankedTable(tables[source.table], arrays[source.table], tables, epoch, source.columns)
            items = None if source.table == ranking.table else tables[ranking.table]
            return cls(rows, source.vectors(users), items, number=source)
        of_items = arrays[ranking.table]
        if ranking.tower is None:
            rows = RankedTable(tables[ranking.table], of_items, tables, epoch, ranking.columns)
            there = None if like is None else present(rows.table, epoch, like)
            assert vectors is not None, "the network was run"
            return cls(rows, vectors, there=there)
        read = ReadVectors.of(ranking.tower, state.generation.version, of_items)
        rows = RankedTable(read.table, of_items, tables, epoch, ranking.columns)
        if vectors is not None:
            return cls(rows, read.queries(vectors), by_vectors=read, generation=read.generation)
        assert like is not None, "other sources have a table or are computed"
        of_like, there = np.zeros((users, ranking.columns), np.float32), np.zeros(users, np.bool_)
        code_scan.read_rows(read.table, epoch, ranking.columns, np.ascontiguousarray(like), of_like, there)
        return cls(rows, of_like, there=there, generation=read.generation)

    def gone(self, ranked: Sequence[RankedRows]) -> list[Int64s]:
        """Return which keys of each list are no items of the state."""
        if self.items is None:
            return []
        epoch = self.rows.epoch
        return [rows.keys[~present(self.items, epoch, rows.keys)] for rows in ranked]

    def scored(self, ranked: Sequence[RankedRows]) -> list[RankedRows]:
        """Return lists with the scores of their products; empty ones for items that are not there."""
        scored = list(ranked)
        if self.by_vectors is not None:
            scored = [RankedRows(rows.keys, self.by_vectors.scores(rows.scores)) for rows in scored]
        if self.number is not None:
            scored = [RankedRows(rows.keys, self.number.scores(rows.scores)) for rows in scored]
        if self.there is None:
            return scored
        nothing = RankedRows(np.empty(0, np.int64), np.empty(0, np.float32))
        return [rows if is_present else nothing for rows, is_present in zip(scored, self.there)]


def present(table: Int64s, epoch: int, keys: Int64s) -> Bools:
    """Return which keys have a row in a table, as of an epoch."""
    refs = np.empty(len(keys), np.int64)
    row_kernels.look_up(np.ascontiguousarray(table), epoch, np.ascontiguousarray(keys), refs)
    return np.asarray(refs >= 0)
