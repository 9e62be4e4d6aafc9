"""Judge deltas before they are served, and monitor them afterwards: the delta guard of one version.

It computes figures of what a delta changes, and of its effect on the scores of recently requested rows
(sample_scoring). Whether a delta that is out of line is held is decided by processor.versions.delta_checks.

Invariants
- The guard learns only from what is served: a delta that fails on the way, or is held, leaves nothing behind.
- A failed preview does not count against the delta: it is checked by the other figures.
- The rows of a delta that are sampled cannot be predicted from outside: the system's entropy seeds the generator.
- A hold is released only with evidence: by scores, or if this server held the delta itself for another reason than
  scores. Where it has not learned what is usual, the floors apply.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import shortage
from freshet_serving.processor.extensions.guard.delta_figures import RowLengths, delta_figures, longest_row
from freshet_serving.processor.extensions.guard.delta_guard import OF_SCORES, DeltaGuard, is_quiet
from freshet_serving.processor.extensions.guard.drift import Drift
from freshet_serving.processor.extensions.guard.post_deploy_monitor import PostDeployMonitor
from freshet_serving.processor.generation import OFF, STRICT, Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.versions.changes import StateChange
from freshet_serving.processor.versions.judges import GATED, ONE, DeltaJudge
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    AutoRollback,
    DeltaBounds,
    Figure,
    Finding,
    Histogram,
    LabelSums,
    PreviewResult,
    Sketch,
    Verdict,
)

log = logging.getLogger("freshet.guard")

LENGTHS_OF = 256
"""Rows of a table whose lengths are measured, once."""
STRICT_ROWS, STRICT_S = 4096, 2.0


class PreDeployCheck(DeltaJudge):
    def __init__(
        self,
        bounds: Callable[[], DeltaBounds],
        preview_s: Histogram,
        clock: Clock,
        random: np.random.Generator | None = None,
    ) -> None:
        """Start without any knowledge of usual deltas; the seconds of each preview are added to `preview_s`.

        `random` selects the sampled rows; it is secret, and seeded by the system except in tests.
        """
        self._bounds, self._preview_s, self._clock = bounds, preview_s, clock
        self._random = random or np.random.default_rng()
        self._guard, self._drift, self._lengths = DeltaGuard(), Drift(), RowLengths()
        self._figures: list[Figure] = []
        self._parent = ""
        # Kind of verdict for which this server set the newest hold, "" if another server set it.
        self._held = ""
        self._monitor = PostDeployMonitor()
        # The newest step that may have changed the scores of the same rows.
        self._moved = 0

    @property
    def judges(self) -> bool:
        return self._bounds().mode != OFF

    def examine(self, version: ServedVersion, delta: Delta, change: StateChange, asked: str) -> Finding:
        bounds = self._bounds()
        self._figures, self._parent = [], version.digest
        if bounds.mode == OFF:
            return Finding()
        self._figures = self._rows_and_weights(version, delta)
        previewed = self._preview(version, change, bounds)
        if previewed is not None:
            self._preview_s.observe(previewed.seconds)
            self._figures += previewed.figures
        return Finding(tuple(self._figures), self._judge(bounds, delta, asked))

    def held(self, verdict: Verdict) -> None:
        self._held = verdict.kind

    def served(self, version: ServedVersion, delta: Delta) -> None:
        self._guard.learn(self._figures, delta.events, delta.rows)
        now_s, bounds = self._clock.now_s(), self._bounds()
        # Only unchecked changes exceed the bound.
        anew = self._too_far(bounds) is not None
        self._drift.serve(self._figures, self._parent, version.digest, now_s, anew)
        for kind, table, value in self._figures:
            if kind == "longest":
                self._lengths.served(table, value, now_s)
        self._held = ""
        if not is_quiet(bounds, self._figures):
            self._moved = delta.step

    def monitored(self, generation: Generation) -> bool:
        return self.judges and self._monitor.monitored(generation)

    def look(self, now_s: float, generation: Generation, sketch: Sketch, released: int) -> AutoRollback | None:
        bounds = self._bounds()
        if bounds.mode == OFF:
            return None
        return self._monitor.look(bounds, now_s, generation, sketch, self._moved, released)

    def tell(self, generation: Generation, evidence: LabelSums) -> None:
        self._monitor.tell(generation, evidence)

    def _judge(self, bounds: DeltaBounds, delta: Delta, scope: str) -> Verdict | None:
        caution = False
        if scope == GATED:
            scored = any(figure.kind in OF_SCORES for figure in self._figures)
            blind = self._held and self._held not in (*OF_SCORES, "drift")
            if not scored and not blind:
                return Verdict("unknown", "none of the sampled rows can be scored, so its effect is unknown")
            caution = not self._held and not self._guard.knows(bounds)
        # Good deltas in the same run do not excuse a bad one, so their size is not credited.
        events, rows = (delta.events, delta.rows) if scope == ONE else (0, 0)
        return self._guard.judge(bounds, self._figures, events, rows, caution) or self._too_far(bounds)

    def _too_far(self, bounds: DeltaBounds) -> Verdict | None:
        return self._drift.judge(self._figures, self._parent, self._clock.now_s(), bounds.hour, bounds.day)

    def _rows_and_weights(self, version: ServedVersion, delta: Delta) -> list[Figure]:
        # The number of rows in a row store is not known here.
        rows = {name: math.inf if table.rows_elsewhere else table.rows for name, table in version.tables.items()}

        def longest(table: str, old_rows: NDArray[np.float32]) -> float:
            length = self._lengths.longest(table)
            if length is None:
                keys = version.tables[table].some_keys(LENGTHS_OF, self._random.random())
                length = max(longest_row(old_rows), longest_row(version.look_up(table, keys)[1]))
                if length:
                    self._lengths.begin(table, length, self._clock.now_s())
            return length

        return delta_figures(delta, version.look_up, rows, version.dense, self._random, longest)

    def _preview(self, version: ServedVersion, change: StateChange, bounds: DeltaBounds) -> PreviewResult | None:
        rows, max_s = bounds.preview_rows, bounds.preview_ms / 1e3
        if bounds.mode == STRICT:
            rows, max_s = max(rows, STRICT_ROWS), max(max_s, STRICT_S)
        try:
            return version.preview(change, rows, max_s)
        except Exception as error:
            if (short := shortage(error)) is not None:
                # A check that only lacks memory is made again; without it the change would be served unseen.
                raise short from error
            log.warning("cannot preview %s: %s", change.generation, error)
            return None
