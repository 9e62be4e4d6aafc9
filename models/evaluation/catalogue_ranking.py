"""Hit rate and NDCG of the item that came next, among all items that have a row.

Ties: a target is behind every other item of its score (models.evaluation.ranking). Seen items: those of the history are
no candidates, but a target is one even if the user had it before. A target without a row is missed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.ranking import RankingResult, RankTally
from freshet_serving.processor.package.item_rows import ItemRows

CHUNK_SCORES = 1 << 22
"""Scores that are held at once."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class Lifts(NamedTuple):
    """Additions float32 [k] to some products, by numbers of users, ascending, and places of items."""

    users: Int64s
    places: Int64s
    values: Float32s


class RankedTargets(NamedTuple):
    """Some ranked targets: vectors of their users [n, d], places among the items (-1: without a row), ranks from 1."""

    users: Float32s
    places: Int64s
    ranks: Int64s


class CatalogueRanking:
    """Ranks of targets, counted as they come: `top` places count, among the `items` of the last ones."""

    def __init__(self, top: int) -> None:
        self.top, self.items = top, 0
        self._tally = RankTally(top)

    @property
    def targets(self) -> int:
        return self._tally.targets

    def add(
        self,
        users: Float32s,
        items: Float32s,
        targets: Int64s,
        seen: Int64s,
        splits: Int64s,
        lifts: Lifts | None = None,
    ) -> Int64s:
        """Add n targets; return their ranks [n], from 1.

        Args:
            users: float32 [n, d], vectors of the users.
            items: float32 [m, d], rows of all items.
            targets: int64 [n], each target's place among the items; negative for one without a row.
            seen: Places of the items of the histories; negative ones are skipped.
            splits: int64 [n + 1]; those of target i are [splits[i], splits[i + 1]).
            lifts: What is added to products of users and items; each pair once.
        """
        rows = max(1, CHUNK_SCORES // max(1, len(items)))
        ranked = np.empty(len(targets), np.int64)
        for first in range(0, len(targets), rows):
            last = min(first + rows, len(targets))
            scores = users[first:last] @ items.T
            if lifts is not None:
                chosen = slice(*np.searchsorted(lifts.users, (first, last)))
                scores[lifts.users[chosen] - first, lifts.places[chosen]] += lifts.values[chosen]
            ranked[first:last] = _ranks(scores, targets[first:last], seen, splits[first : last + 1])
        self._tally.add(ranked)
        self.items = len(items)
        return ranked

    def result(self) -> RankingResult:
        """Return the means over all targets; NaN without one."""
        return self._tally.result()

    def figures(self) -> dict[str, float]:
        """Return the figures by name; NaN without a target."""
        means = self.result()
        return {"hit_rate": means.hit_rate, "ndcg": means.ndcg}

    def told(self) -> str:
        means = self.result()
        return (
            f"the first {self.top} of all items: hit rate {means.hit_rate:.4f}, NDCG {means.ndcg:.4f}"
            f" over {means.groups:,} events"
        )


def gains_of(ranks: Int64s, top: int) -> NDArray[np.float64]:
    """Return the share of the NDCG that targets of these ranks [n] have, if `top` places count."""
    return np.where(ranks <= top, 1.0 / np.log2(np.minimum(ranks, top) + 1.0), 0.0)


def lifts_of(layout: ItemRows, mixture: Float32s, places: Int64s, shares: Float32s, rows: Float32s) -> Lifts:
    """Return what is added to the products of users' vectors with the rows of some places.

    Args:
        mixture: float32 [n, 3].
        places: int64 [n, s], places of items; negative for none.
        shares: float32 [n, s, 2].
        rows: float32 [m, layout.width], rows of all items.
    """
    user, at = np.nonzero((places >= 0) & shares.any(-1))
    where = places[user, at]
    return Lifts(user, where, layout.lifts(shares[user, at], rows[where, layout.dim], mixture[user]))


def places_of(keys: NDArray[Any], ids: NDArray[Any]) -> Int64s:
    """Return the place of each id among ascending keys, -1 for one that is none of them."""
    at = np.searchsorted(keys, ids)
    hit = np.append(keys, keys.dtype.type(0))[at] == ids
    return np.where(hit & (at < len(keys)), at, -1)


def _ranks(scores: Float32s, targets: Int64s, seen: Int64s, splits: Int64s) -> Int64s:
    """Return each target's rank from 1; past all items for one without a row."""
    has_row, rows = targets >= 0, np.arange(len(targets))
    if not scores.shape[1]:
        return np.full(len(targets), 1 << 62)
    target_scores = scores[rows, np.maximum(targets, 0)]
    at = seen[splits[0] : splits[-1]]
    row = np.repeat(rows, np.diff(splits))
    scores[row[at >= 0], at[at >= 0]] = -np.inf
    scores[rows[has_row], targets[has_row]] = target_scores[has_row]
    # NaN ranks ahead of every target, and a target of NaN behind every item: nothing is hit by chance.
    ranks: Int64s = (~(scores < target_scores[:, None])).sum(axis=1)
    return np.where(has_row, ranks, 1 << 62)
