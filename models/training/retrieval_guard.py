"""Guard the deltas of a run of two towers that learn to retrieve (models.training.rank_stream_guard).

Costs: at most RANKED rows of each batch are ranked among all items, and EARLIER rows twice for each delta among a
sample of them (models.training.pair_ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.pair_ranks import PairRanks
from freshet_serving.models.training.rank_guard import Float64s
from freshet_serving.models.training.rank_stream_guard import RankStreamGuard
from freshet_serving.models.training.retrieval_trainer import PairBatch, RetrievalTrainer
from freshet_serving.models.training.trainer import BoundBatch


class RetrievalGuard(RankStreamGuard):
    """The guard of one run, whose events are the rows that were chosen."""

    def __init__(self, config: GuardConfig, trainer: RetrievalTrainer, ranks: PairRanks, top: int) -> None:
        self._ranks = ranks
        super().__init__(config, trainer, top)

    def _events(self, work: BoundBatch, scores: NDArray[Any]) -> int:
        assert isinstance(work, PairBatch)
        return len(work.pairs)

    def _ranked(self, works: Sequence[PairBatch], most: int) -> Float64s:
        return self._ranks.rank_again(works, CatalogueRanking(self._top), most)
