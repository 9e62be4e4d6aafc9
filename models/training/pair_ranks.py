"""Rank the items of rows among the recent items, as a trainer has them now.

All items' vectors are recomputed once as many rows were learned as there are items, so ranking costs at most one item's
vector a learned row; users' vectors are always new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking, gains_of, places_of
from freshet_serving.models.training.retrieval_trainer import PairBatch, RetrievalTrainer

MOST_SCORES = 1 << 25
"""Most scores for a batch; of a larger one fewer rows are ranked."""
SAMPLED = 1 << 13
"""Items among which rows are ranked to compare two states of the weights."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]


class PairRanks:
    """Ranks by one trainer, of which it changes nothing."""

    def __init__(self, trainer: RetrievalTrainer) -> None:
        self._trainer = trainer
        self._keys, self._vectors = np.empty(0, np.int64), np.empty((0, 1), np.float32)
        self._computed = -1, -1

    def rank(self, work: PairBatch, ranking: CatalogueRanking, most: int = 0) -> Float64s:
        """Return the NDCG share [n], NaN for absent items, of at most `most` rows (0 for all), evenly from all."""
        self._refresh()
        within = max(1, MOST_SCORES // max(1, len(self._keys)))
        return self._ranked(work, ranking, min(most or within, within), self._keys, self._vectors)

    def rank_again(self, works: Sequence[PairBatch], ranking: CatalogueRanking, most: int) -> Float64s:
        """Rank at most `most` rows of each batch by the current weights, among SAMPLED items and those of the rows."""
        trainer = self._trainer
        if not works or not len(trainer.recent):
            return np.empty(0)
        keys = np.concatenate([trainer.item_keys(work.bound) for work in works])
        sample = np.arange(min(SAMPLED, len(trainer.recent))) * len(trainer.recent) // min(SAMPLED, len(trainer.recent))
        row_places = places_of(trainer.recent.keys, keys)
        places = np.union1d(sample, row_places[row_places >= 0])
        vectors = trainer.item_vectors(places)
        return np.concatenate(
            [self._ranked(work, ranking, most, trainer.recent.keys[places], vectors) for work in works]
        )

    def _ranked(
        self, work: PairBatch, ranking: CatalogueRanking, most: int, keys: Int64s, vectors: Float32s
    ) -> Float64s:
        rows = np.arange(len(work.pairs))
        if len(rows) > most:
            rows = np.arange(most) * len(rows) // most
        if not len(rows) or not len(keys):
            return np.full(len(rows), np.nan)
        targets = places_of(keys, self._trainer.item_keys(work.bound)[rows])
        nothing = np.zeros(len(rows) + 1, np.int64)
        ranks = ranking.add(self._trainer.user_vectors(work, rows), vectors, targets, nothing[:0], nothing)
        return np.where(targets >= 0, gains_of(ranks, ranking.top), np.nan)

    def _refresh(self) -> None:
        """Recompute the items' vectors if it is time."""
        events, assigned = self._computed
        now = self._trainer.recent.events, self._trainer.dense.state.assigned
        if assigned != now[1] or not 0 <= now[0] - events < max(1, len(self._keys)):
            self._computed = now
            self._keys = self._trainer.recent.keys.copy()
            self._vectors = self._trainer.item_vectors(np.arange(len(self._keys)))
