"""Guard the deltas of a run of a next-item network (models.training.rank_stream_guard).

Costs: at most RANKED events of each batch (beyond MOST_ITEMS items, of one batch in several) are ranked among all items
with one pass of the network over its histories, and again by popularity alone; EARLIER events twice for each delta.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.rank_guard import Float64s
from freshet_serving.models.training.rank_stream_guard import RankStreamGuard
from freshet_serving.models.training.target_ranks import rank_targets
from freshet_serving.models.training.trainer import BoundBatch

RANKED, MOST_ITEMS = 256, 1 << 17


class NextItemGuard(RankStreamGuard):
    """The guard of one run."""

    def __init__(self, config: GuardConfig, trainer: NextItemTrainer, top: int) -> None:
        super().__init__(config, trainer, top)
        self._items = trainer

    def sees(self, batches: int) -> bool:
        """Return whether to see the batch after so many."""
        return self.config.enabled and not batches % (1 + len(self._items.items) // MOST_ITEMS)

    def rank(self, work: BoundBatch, ranking: CatalogueRanking, most: int = 0) -> Float64s:
        """Return the gains of at most `most` events (0 for all) by network and by popularity, as see() takes them."""
        return rank_targets(self._items, work, ranking, most, CatalogueRanking(self._top))

    def _ranked(self, works: Sequence[BoundBatch], most: int) -> Float64s:
        ranking = CatalogueRanking(self._top)
        gains = [rank_targets(self._items, work, ranking, most) for work in works]
        return np.concatenate([*(each[:, 0] for each in gains), np.empty(0)])
