"""Guard the deltas of a run of two towers that learn to retrieve: as next_item_guard, with rows in place of histories.

Costs: of each batch at most RANKED rows are ranked among all items. For each delta EARLIER rows are ranked twice, among
a sample of the items (models.training.pair_ranks).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.next_item_guard import EARLIER
from freshet_serving.models.training.pair_ranks import PairRanks
from freshet_serving.models.training.rank_guard import Float64s, RankGuard, WindowRanks
from freshet_serving.models.training.retrieval_trainer import PairBatch, RetrievalTrainer
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.models.training.window_guard import WindowVerdicts


class RetrievalGuard(StreamGuard):
    """The guard of one run."""

    def __init__(self, config: GuardConfig, trainer: RetrievalTrainer, ranks: PairRanks, top: int) -> None:
        """Begin without a window.

        Args:
            config: The section [guard].
            trainer: The trainer.
            ranks: Its ranks.
            top: Places that count.
        """
        self._top, self._ranks = top, ranks
        super().__init__(config, trainer)
        self._works: deque[PairBatch] = deque()
        # Those before the window, and their gains by the weights before it.
        self._again, self._gains = list[PairBatch](), np.empty(0)

    @staticmethod
    def _verdicts(config: GuardConfig) -> WindowVerdicts[Any]:
        return RankGuard(config)

    def _no_scores(self) -> Any:
        return WindowRanks(self._top)

    def see_held_out(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch of the full version's held-out rows.

        Args:
            work: The batch.
            scores: The gains of its rows, as of WindowRanks.add().
        """
        self._held_out.add(scores)

    def see(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch with the gains of its rows, from before it is learned; arguments as of see_held_out()."""
        self._window.add(scores)
        assert isinstance(work, PairBatch)
        self._works.append(work)
        while sum(len(one.pairs) for one in self._works) - len(self._works[0].pairs) >= EARLIER:
            self._works.popleft()

    def begin(self) -> None:
        """Start a window after the current weights were published."""
        if self.config.enabled:
            self._again = list(self._works)
            self._gains = self._ranked_again()

    def _look_again(self) -> None:
        if len(self._gains):
            self._window.again(self._gains, self._ranked_again())

    def _ranked_again(self) -> Float64s:
        most = -(-EARLIER // max(1, len(self._again)))
        return self._ranks.rank_again(self._again, CatalogueRanking(self._top), most)
