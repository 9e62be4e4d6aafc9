"""Rank the targets of a batch of histories among the items that have a row, as a trainer has them now."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking, gains_of, lifts_of
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.trainer import BoundBatch


def rank_targets(
    trainer: NextItemTrainer,
    work: BoundBatch,
    ranking: CatalogueRanking,
    most: int = 0,
    by_popularity: CatalogueRanking | None = None,
) -> NDArray[np.float64]:
    """Rank at most `most` targets of a batch (0 for all), evenly from all; changes nothing.

    Return each one's share of the NDCG, and of that by popularity, float64 [n, 2]; NaN for items without a row, and if
    nothing was ranked by popularity.
    """
    states, nexts, real = trainer.states(work)
    live, rows = trainer.catalogue()
    place = np.full(int(live.max(initial=-1)) + 2, -1, np.int64)
    place[live] = np.arange(len(live))
    # An item without a row (-1) gets the last entry, which belongs to no row.
    history, at = np.nonzero(real)
    refs, splits = trainer.event_rows(work)
    chosen = np.arange(len(history))
    if most and len(history) > most:
        chosen = np.arange(most) * len(history) // most
    layout, lifts, after = trainer.rows, None, states[history[chosen], at[chosen]]
    if layout.successors:
        followed = trainer.followed(refs, splits, nexts, real)
        places = place[followed.refs[chosen]]
        lifts = lifts_of(layout, after[:, layout.dim :], places, followed.shares[chosen], rows)
    history, at = history[chosen], at[chosen]
    lengths = at + 1
    ends = np.concatenate([[0], np.cumsum(lengths)])
    seen = np.repeat(splits[history] - ends[:-1], lengths) + np.arange(ends[-1])
    targets = place[nexts[history, at]]
    users, met = after[:, : layout.dense], place[refs[seen]]
    gains = np.full((len(targets), 2), np.nan)
    ranked = targets >= 0
    ranks = ranking.add(users, rows[:, : layout.dense], targets, met, ends, lifts)
    gains[ranked, 0] = gains_of(ranks, ranking.top)[ranked]
    if by_popularity is not None and layout.popularity:
        alike = np.ones((len(targets), 1), np.float32)
        ranks = by_popularity.add(alike, rows[:, layout.dim : layout.dim + 1], targets, met, ends)
        gains[ranked, 1] = gains_of(ranks, ranking.top)[ranked]
    return gains
