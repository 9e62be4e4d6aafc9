"""Guard the deltas of a run of a next-item network: as models.training.stream_guard, by ranks in place of scores.

Costs: of each batch at most RANKED events are ranked among all items, with one pass of the network over its histories;
where there are more than MOST_ITEMS items, in one batch of several. And so are EARLIER events twice for each delta.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.rank_guard import Float64s, RankGuard, WindowRanks
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.target_ranks import rank_targets
from freshet_serving.models.training.trainer import BoundBatch
from freshet_serving.models.training.window_guard import WindowVerdicts

RANKED, EARLIER, MOST_ITEMS = 256, 512, 1 << 17


class NextItemGuard(StreamGuard):
    """The guard of one run."""

    def __init__(self, config: GuardConfig, trainer: NextItemTrainer, top: int) -> None:
        """Begin without a window.

        Args:
            config: The section [guard].
            trainer: The trainer.
            top: Places that count.
        """
        self._top = top
        super().__init__(config, trainer)
        self._items = trainer
        self._works: deque[tuple[BoundBatch, int]] = deque()
        # Those before the window, and their gains by the weights before it.
        self._again, self._gains = list[BoundBatch](), np.empty(0)

    @staticmethod
    def _verdicts(config: GuardConfig) -> WindowVerdicts[Any]:
        return RankGuard(config)

    def _no_scores(self) -> Any:
        return WindowRanks(self._top)

    def sees(self, batches: int) -> bool:
        """Return whether it is to see the batch after so many."""
        return self.config.enabled and not batches % (1 + len(self._items.items) // MOST_ITEMS)

    def see_held_out(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch of the full version's held-out events.

        Args:
            work: The batch.
            scores: The gains of its events, as of WindowRanks.add().
        """
        self._held_out.add(scores)

    def see(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch with the gains of its events, from before it is learned; arguments as of see_held_out()."""
        self._window.add(scores)
        self._works.append((work, len(scores)))
        while sum(count for _, count in self._works) - self._works[0][1] >= EARLIER:
            self._works.popleft()

    def _score_earlier(self) -> None:
        self._again = [work for work, _ in self._works]
        self._gains = self._ranked_again()

    def _look_again(self) -> None:
        if self._again:
            self._window.again(self._gains, self._ranked_again())

    def _ranked_again(self) -> Float64s:
        ranking, most = CatalogueRanking(self._top), -(-EARLIER // max(1, len(self._again)))
        gains = [rank_targets(self._items, work, ranking, most) for work in self._again]
        return np.concatenate([*gains, np.empty(0)])
