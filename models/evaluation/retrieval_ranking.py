"""Recall and NDCG of the item that a user chose, among all items of a catalogue.

An event's recall at k is 1 if the item is among the first k. Ties are those of catalogue_ranking. Items that the user
chose before are candidates, since what is chosen again is as good; an item that is not in the catalogue is missed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking, Lifts
from freshet_serving.models.evaluation.ranking import RankTally

FURTHER = 100
"""Places of the recall that counts for retrieval, beside those of a list that users see."""

Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]


class RetrievalRanking(CatalogueRanking):
    def __init__(self, top: int) -> None:
        super().__init__(top)
        self._further = RankTally(FURTHER)

    def add(
        self,
        users: Float32s,
        items: Float32s,
        targets: Int64s,
        seen: Int64s | None = None,
        splits: Int64s | None = None,
        lifts: Lifts | None = None,
    ) -> Int64s:
        """Add n targets, as CatalogueRanking does; nothing is seen unless it is given."""
        none = np.zeros(len(targets) + 1, np.int64)
        ranks = super().add(
            users, items, targets, none[:0] if seen is None else seen, none if splits is None else splits, lifts
        )
        self._further.add(ranks)
        return ranks

    def figures(self) -> dict[str, float]:
        near, far = self.result(), self._further.result()
        return {f"recall@{self.top}": near.hit_rate, f"recall@{FURTHER}": far.hit_rate, f"ndcg@{self.top}": near.ndcg}

    def told(self) -> str:
        near, far = self.result(), self._further.result()
        return (
            f"recall@{self.top} {near.hit_rate:.4f}, recall@{FURTHER} {far.hit_rate:.4f}, NDCG@{self.top}"
            f" {near.ndcg:.4f} over {self.targets:,} events, among {self.items:,} items"
        )
