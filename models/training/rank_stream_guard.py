"""Guard the deltas of a run as models.training.stream_guard, by ranks (models.training.rank_guard).

Costs: EARLIER events are ranked twice for each delta.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.training.rank_guard import Float64s, RankGuard, WindowRanks
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.trainer import BoundBatch, Trainer
from freshet_serving.models.training.window_guard import WindowVerdicts

EARLIER = 512
"""Number of events from before a window that are ranked again."""


class RankStreamGuard(StreamGuard):
    """The guard of one run."""

    def __init__(self, config: GuardConfig, trainer: Trainer, top: int) -> None:
        self._top = top
        super().__init__(config, trainer)
        self._works: deque[tuple[BoundBatch, int]] = deque()
        # Batches before the window, and their gains by the weights before it.
        self._again, self._gains = list[Any](), np.empty(0)

    @staticmethod
    def _verdicts(config: GuardConfig) -> WindowVerdicts[Any]:
        return RankGuard(config)

    def _no_scores(self) -> Any:
        return WindowRanks(self._top)

    def see_held_out(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add the gains of a held-out batch's events, as of WindowRanks.add()."""
        self._held_out.add(scores)

    def see(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch with the gains of its events, from before training on it."""
        self._window.add(scores)
        self._works.append((work, self._events(work, scores)))
        while sum(count for _, count in self._works) - self._works[0][1] >= EARLIER:
            self._works.popleft()

    def _events(self, work: BoundBatch, scores: NDArray[Any]) -> int:
        """Return how many events a batch counts as."""
        return len(scores)

    def _score_earlier(self) -> None:
        self._again = [work for work, _ in self._works]
        self._gains = self._ranked_again()

    def _look_again(self) -> None:
        if self._again:
            self._window.again(self._gains, self._ranked_again())

    def _ranked_again(self) -> Float64s:
        return self._ranked(self._again, -(-EARLIER // max(1, len(self._again))))

    @abstractmethod
    def _ranked(self, works: Sequence[Any], most: int) -> Float64s:
        """Return the gains, float64 [n], of at most `most` events of each batch by the current weights."""
