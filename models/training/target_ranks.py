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
    """Rank the targets of a batch; change nothing of the trainer.

    Args:
        most: Targets at most, evenly from all; 0 for all.
        by_popularity: Counts the ranks by the items' popularity alone, if they have one.

    Returns:
        Each target's share of the NDCG, float64 [n, 2], and of that by popularity; NaN for an item without a row, and
        where nothing was ranked by popularity.
    """
    states, nexts, real = trainer.states(work)
    there, rows = trainer.catalogue()
    place = np.full(int(there.max(initial=-1)) + 2, -1, np.int64)
    place[there] = np.arange(len(there))
    # An item without a row (-1) finds the last entry, which belongs to no row.
    history, at = np.nonzero(real)
    refs, splits = trainer.event_rows(work)
    some = np.arange(len(history))
    if most and len(history) > most:
        some = np.arange(most) * len(history) // most
    layout, lifts, after = trainer.rows, None, states[history[some], at[some]]
    if layout.successors:
        followed = trainer.followed(refs, splits, nexts, real)
        places = place[followed.refs[some]]
        lifts = lifts_of(layout, after[:, layout.dim :], places, followed.shares[some], rows)
    history, at = history[some], at[some]
    lengths = at + 1
    ends = np.concatenate([[0], np.cumsum(lengths)])
    seen = np.repeat(splits[history] - ends[:-1], lengths) + np.arange(ends[-1])
    targets = place[nexts[history, at]]
    users, met = after[:, : layout.dense], place[refs[seen]]
    gains = np.full((len(targets), 2), np.nan)
    known = targets >= 0
    ranks = ranking.add(users, rows[:, : layout.dense], targets, met, ends, lifts)
    gains[known, 0] = gains_of(ranks, ranking.top)[known]
    if by_popularity is not None and layout.popularity:
        alike = np.ones((len(targets), 1), np.float32)
        ranks = by_popularity.add(alike, rows[:, layout.dim : layout.dim + 1], targets, met, ends)
        gains[known, 1] = gains_of(ranks, ranking.top)[known]
    return gains
