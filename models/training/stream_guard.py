"""Guard a run's deltas: judge windows of rows, and hold or release deltas.

A window ends with a delta, or with a later one if it has too few rows; its rows so far are checked at every delta. An
abnormal window puts a hold before its delta: servers stay at the previous generation, and the run continues to train
and publish behind the hold. Enough normal windows release it. Otherwise an operator releases the held deltas or rejects
them, which rolls the run back.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.lineage import Lineage
from freshet_serving.models.training.trainer import BoundBatch, Trainer
from freshet_serving.models.training.window_guard import Figures, Floats, WindowGuard, WindowScores, WindowVerdicts
from freshet_serving.processor.columns import Column, join_columns

EARLIER_ROWS = 512
"""Minimum of rows before a window that are scored again: a small batch may lack a label."""


class StreamGuard:
    """The guard of one run.

    Cost: two scorings of EARLIER_ROWS for each delta, by the weights before and after the window.
    """

    def __init__(self, config: GuardConfig, trainer: Trainer) -> None:
        self.config, self.windows = config, self._verdicts(config)
        self._trainer, self._window, self._held_out = trainer, self._no_scores(), self._no_scores()
        self.newest: Figures | None = None
        self.held_windows = 0
        self._newest: deque[Batch] = deque()
        # Columns and labels of those rows, and their scores by the weights before the window.
        self._earlier: tuple[dict[str, Column], Floats, Floats] | None = None
        self._prepared = True

    @staticmethod
    def _verdicts(config: GuardConfig) -> WindowVerdicts[Any]:
        return WindowGuard(config)

    def _no_scores(self) -> Any:
        return WindowScores()

    def see_held_out(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch of the full version's held-out rows, scored before training on it."""
        self._held_out.add(work.batch.label, scores, work.batch.weight)

    def begin_stream(self) -> None:
        """Start from the figures of the held-out rows, before the full version is published."""
        self.windows.begin_with(self._held_out.figures())

    def see(self, work: BoundBatch, scores: NDArray[Any]) -> None:
        """Add a batch with its scores from before training on it."""
        self._window.add(work.batch.label, scores, work.batch.weight)
        newest = self._newest
        newest.append(work.batch)
        while sum(map(len, newest)) - len(newest[0]) >= EARLIER_ROWS:
            newest.popleft()

    def begin(self) -> None:
        self._prepared = not self.config.enabled

    def prepare(self) -> None:
        """Finish the start of a window before the weights change; the run's last delta needs none."""
        if not self._prepared:
            self._prepared = True
            self._score_earlier()

    def _score_earlier(self) -> None:
        if self._newest:
            batches = list(self._newest)
            # One batch of all: processes that train together keep few prefetched batches.
            columns = {name: join_columns([b.columns[name] for b in batches]) for name in batches[0].columns}
            label = np.concatenate([batch.label for batch in batches])
            self._earlier = columns, label, self._trainer.score(columns)

    def reset(self) -> None:
        """Discard the scores after a rollback of the weights that produced them."""
        self._window, self.windows.reason = self._no_scores(), ""
        self.begin()

    def judge(self, lineage: Lineage) -> str:
        """Judge the window that the next delta ends, and hold or release deltas; return one line about it, or ""."""
        if not self.config.enabled:
            return ""
        self._look_again()
        if self.windows.reason and not lineage.held:
            # An operator has released it.
            self.windows.reset()
        figures = self._window.figures()
        reason = self.windows.judge(figures)
        if figures.enough or reason:
            self._window, self.newest = self._no_scores(), figures
        self.held_windows += bool(reason)
        if reason and lineage.hold(reason):
            return f"held, later deltas are not served: {reason}"
        if self.windows.may_release() and lineage.release():
            return "released: windows are normal again"
        return ""

    def _look_again(self) -> None:
        if self._earlier is not None:
            columns, label, before = self._earlier
            self._window.again(label, before, self._trainer.score(columns))
