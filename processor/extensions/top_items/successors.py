"""Score the successors of a user's newest events, whose scores are more than products (processor.package.item_rows).

A scan ranks all other rows by their products. So an exact answer is the best of the scan without the successors, and of
these, at most 2 * ItemRows.successors for each user, which are scored here from the same state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.extensions.top_items import code_scan
from freshet_serving.processor.extensions.top_items.row_ranking import RankedRows
from freshet_serving.processor.package.item_rows import ItemRows

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


def score_successors(
    table: Int64s, epoch: int, layout: ItemRows, history: Int64s, seen: Int64s, vector: Float32s, mixture: Float32s
) -> RankedRows:
    """Return the successors of a user's newest two events and their scores, in no order, without `seen` keys.

    History has keys of items, the newest last; the user's vector is float32 [width], the mixture [3].
    """
    newest = np.zeros((2, layout.width), np.float32)
    rows, present = _rows(table, epoch, layout.width, history[-2:][::-1])
    newest[: len(rows)][present] = rows[present]
    keys, shares = (each[0] for each in layout.followed(newest[:1], newest[1:]))
    shares_any = shares.any(-1) & ~np.isin(keys, seen)
    keys, shares = keys[shares_any], shares[shares_any]
    rows, present = _rows(table, epoch, layout.width, keys)
    keys, rows = keys[present], rows[present]
    scores = rows @ vector + layout.lifts(shares[present], rows[:, layout.dim], mixture)
    whole = np.isfinite(scores)
    return RankedRows(keys[whole], scores[whole].astype(np.float32))


def merged(ranked: RankedRows, successors: RankedRows, k: int) -> RankedRows:
    """Return the k best of both, best first; equal scores are ordered by key."""
    keys = np.concatenate([ranked.keys, successors.keys])
    scores = np.concatenate([ranked.scores, successors.scores])
    order = np.lexsort((keys, -scores))[:k]
    return RankedRows(keys[order], scores[order])


def _rows(table: Int64s, epoch: int, dim: int, keys: Int64s) -> tuple[Float32s, NDArray[np.bool_]]:
    rows, present = np.zeros((len(keys), dim), np.float32), np.zeros(len(keys), np.bool_)
    code_scan.read_rows(table, epoch, dim, np.ascontiguousarray(keys), rows, present)
    return rows, present
