"""Rank the items that count, of one state, for users' vectors: all that pass a filter, or the keys that are allowed.

Successors, whose scores are more than products (successors), are left out of the scan and ranked beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items.item_filters import ItemFilter
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows, end_to_end, rank_keys, rank_rows
from freshet_serving.processor.extensions.top_items.successors import merged

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class RankedTable(NamedTuple):
    """The rows that are ranked, in a state that is pinned.

    Attributes:
        table: int64 [TABLE_FIELDS], their descriptor: of the items' table, or of items' vectors.
        arrays: What is kept beside them (row_codes, filter_columns).
        tables: int64 [T, TABLE_FIELDS], the descriptors of the version's tables.
        columns: Numbers of a row that products read.
    """

    table: Int64s
    arrays: Mapping[str, NDArray[Any]]
    tables: Int64s
    epoch: int
    columns: int


def best_items(
    rows: RankedTable,
    vectors: Float32s,
    items: ItemFilter | None,
    allowed: Sequence[Int64s] | None,
    excluded: Sequence[Int64s],
    successors: Sequence[RankedRows],
    k: int,
    proceed: Callable[[int], bool],
) -> list[RankedRows]:
    """Return the best items of each user, best first; equal scores are ordered by key.

    Args:
        vectors: float32 [n, at least rows.columns], the users' vectors.
        items: The filter; None for none.
        allowed: For each user, the only keys that count, each once; None for all.
        excluded: For each user, keys that do not count.
        successors: For each user, successors that are not excluded; () if the version has none.
        k: Most items for each user.
        proceed: As of rank_rows().
    """
    products = np.ascontiguousarray(vectors[:, : rows.columns])
    if successors:
        excluded = [np.concatenate([keys, more.keys]) for keys, more in zip(excluded, successors)]
    if allowed is not None:
        allowed = _passing(items, rows, allowed)
        ranked = rank_keys(rows.table, rows.epoch, rows.columns, products, allowed, excluded, k)
    else:
        bits = None if items is None else items.begin(rows.arrays, rows.tables, rows.epoch).bits
        ranked = rank_rows(rows.table, rows.epoch, rows.arrays, products, excluded, k, proceed, bits)
    if successors:
        counting = _passing(items, rows, [more.keys for more in successors]) if allowed is None else allowed
        within = [_within(more, np.isin(more.keys, keys)) for more, keys in zip(successors, counting)]
        ranked = [merged(*both, k) for both in zip(ranked, within)]
    return ranked


def _passing(items: ItemFilter | None, rows: RankedTable, lists: Sequence[Int64s]) -> list[Int64s]:
    """Return those keys of each list that pass a filter; records of all lists are read together."""
    if items is None:
        return list(lists)
    keys, splits = end_to_end(lists)
    passes = items.of_keys(rows.tables, rows.epoch, keys)
    return [keys[first:last][passes[first:last]] for first, last in zip(splits[:-1], splits[1:])]


def _within(rows: RankedRows, counting: NDArray[np.bool_]) -> RankedRows:
    return RankedRows(rows.keys[counting], rows.scores[counting])
