"""The guard of a run's deltas: windows judged, gates set and lifted, rows learned before scored again.

A window ends with a delta, or with a later one where it has too few rows. One that is out of line puts a gate before
its delta: everybody goes on serving the generation before, the run goes on learning and publishing behind the gate, and
its next windows say whether what it has learned is any good. Enough of them in line lift the gate; otherwise somebody
releases what is behind it or rejects it, which takes the run back as any rollback does.
"""

from __future__ import annotations

from models.config.guard_section import GuardConfig
from models.data.source import Batch
from models.training.lineage import Lineage
from models.training.trainer import BoundBatch, Trainer
from models.training.window_guard import Floats, WindowFigures, WindowGuard, WindowScores, row_losses


class StreamGuard:
    """Of one run. newest: figures of the newest window that was judged; held_windows: those that were out of line.

    Costs two scorings of a batch a delta, of the newest one before the window, by the weights before and after it."""

    def __init__(self, config: GuardConfig, trainer: Trainer) -> None:
        self.config, self.windows = config, WindowGuard(config)
        self._trainer, self._window = trainer, WindowScores()
        self.newest: WindowFigures | None = None
        self.held_windows = 0
        self._newest: Batch | None = None
        self._earlier: tuple[Batch, Floats] | None = None

    def see(self, work: BoundBatch, scores: Floats) -> None:
        """A batch and its scores before it is learned."""
        self._window.add(work.batch.label, scores, work.batch.weight)
        self._newest = work.batch

    def begin(self) -> None:
        """The weights as they are were published."""
        if self.config.enabled and self._newest is not None:
            self._earlier = self._newest, self._losses(self._newest)

    def begin_anew(self) -> None:
        """The weights went back: what was scored was scored by others."""
        self._window, self.windows.reason = WindowScores(), ""
        self.begin()

    def judge(self, lineage: Lineage) -> str:
        """Looks at the window that the next delta ends, and sets or lifts the gate; one line about it, or ""."""
        if not self.config.enabled:
            return ""
        if self._earlier is not None:
            batch, before = self._earlier
            self._window.again(before, self._losses(batch))
        figures = self._window.figures()
        if figures is None:
            return ""
        self._window, self.newest = WindowScores(), figures
        if self.windows.reason and not lineage.held:
            # Somebody has released it.
            self.windows.begin_anew()
        reason = self.windows.judge(figures)
        self.held_windows += bool(reason)
        if reason and lineage.hold(reason):
            return f"held, what follows is not served: {reason}"
        if self.windows.resolves() and lineage.release():
            return "released: windows are in line again"
        return ""

    def _losses(self, batch: Batch) -> Floats:
        # By its columns: what a batch was bound to is gone once it is learned.
        return row_losses(batch.label, self._trainer.score(batch.columns))
