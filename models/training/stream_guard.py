"""The guard of a run's deltas: windows judged, gates set and lifted, rows learned before scored again.

A window ends with a delta, or with a later one where it has too few rows; every delta's rows so far are looked at. One
that is out of line puts a gate before
its delta: everybody goes on serving the generation before, the run goes on learning and publishing behind the gate, and
its next windows say whether what it has learned is any good. Enough of them in line lift the gate; otherwise somebody
releases what is behind it or rejects it, which takes the run back as any rollback does.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from freshet_serving.models.config.guard_section import GuardConfig
from freshet_serving.models.data.source import Batch, join_columns
from freshet_serving.models.training.lineage import Lineage
from freshet_serving.models.training.trainer import BoundBatch, Trainer
from freshet_serving.models.training.window_guard import Floats, WindowFigures, WindowGuard, WindowScores
from freshet_serving.processor.columns import Column

EARLIER_ROWS = 512
"""Of the newest rows before a window, so many at least are scored again: a small batch may hold no row of one label."""


class StreamGuard:
    """Of one run. newest: figures of the newest window that was judged; held_windows: those that were out of line.

    Costs two scorings of EARLIER_ROWS a delta, of the newest ones before the window, by the weights before and after
    it."""

    def __init__(self, config: GuardConfig, trainer: Trainer) -> None:
        self.config, self.windows = config, WindowGuard(config)
        self._trainer, self._window, self._held_out = trainer, WindowScores(), WindowScores()
        self.newest: WindowFigures | None = None
        self.held_windows = 0
        self._newest: deque[Batch] = deque()
        # Columns and labels of those rows, and their scores by the weights before the window.
        self._earlier: tuple[dict[str, Column], Floats, Floats] | None = None

    def see_held_out(self, work: BoundBatch, scores: Floats) -> None:
        """Note a batch of the full version's held-out rows, scored before it was learned."""
        self._held_out.add(work.batch.label, scores, work.batch.weight)

    def begin_stream(self) -> None:
        """Start from what the held-out rows say: the full version is about to be published."""
        self.windows.begin_with(self._held_out.figures())

    def see(self, work: BoundBatch, scores: Floats) -> None:
        """A batch and its scores before it is learned."""
        self._window.add(work.batch.label, scores, work.batch.weight)
        newest = self._newest
        newest.append(work.batch)
        while sum(map(len, newest)) - len(newest[0]) >= EARLIER_ROWS:
            newest.popleft()

    def begin(self) -> None:
        """The weights as they are were published."""
        if self.config.enabled and self._newest:
            batches = list(self._newest)
            # One batch, whatever they were: processes that learn together keep few batches that were read ahead of it.
            columns = {name: join_columns([b.columns[name] for b in batches]) for name in batches[0].columns}
            label = np.concatenate([batch.label for batch in batches])
            self._earlier = columns, label, self._trainer.score(columns)

    def reset(self) -> None:
        """The weights went back: what was scored was scored by others."""
        self._window, self.windows.reason = WindowScores(), ""
        self.begin()

    def judge(self, lineage: Lineage) -> str:
        """Looks at the window that the next delta ends, and sets or lifts the gate; one line about it, or ""."""
        if not self.config.enabled:
            return ""
        if self._earlier is not None:
            columns, label, before = self._earlier
            self._window.again(label, before, self._trainer.score(columns))
        if self.windows.reason and not lineage.held:
            # Somebody has released it.
            self.windows.reset()
        figures = self._window.figures()
        reason = self.windows.judge(figures)
        if figures.enough or reason:
            self._window, self.newest = WindowScores(), figures
        self.held_windows += bool(reason)
        if reason and lineage.hold(reason):
            return f"held, what follows is not served: {reason}"
        if self.windows.may_release() and lineage.release():
            return "released: windows are in line again"
        return ""
