"""Deltas on probation: each is looked at before it is served, and watched for a while after.

Before the flip, in the writer's thread, once its rows are staged and its executables ready: the figures of what it
changes, and of what it would do to the scores of rows that were asked for lately (processor.versions.preview). What is
out of line raises OutOfLine: nothing is flipped, and what was staged is taken back. Who applies the delta then has the
records say so (processor.versions.follower, processor.versions.model).

Invariants
- A delta is judged once, when it is new. What is replayed at a start, or caught up with in a run of more than NEW,
  others have served already; what a person has released is not judged again.
- What is learned is what is served: a delta that fails on the way, or is held, leaves nothing behind.
- A preview that fails costs the delta nothing: it is judged by what else is known of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from processor.errors import Conflict
from processor.package.delta import Delta
from processor.versions.preview import Previewed
from processor.versions.served_version import Change, ServedVersion
from processor.watching.aftermath import Aftermath
from processor.watching.delta_figures import Figure, delta_figures
from processor.watching.delta_guard import OFF, STRICT, DeltaBounds, DeltaGuard, is_quiet
from processor.watching.delta_log import IN_LINE, OUT_OF_LINE, REPLAYED, UNJUDGED, DeltaEntry, DeltaLog
from processor.watching.histogram import SHORT_S, Histogram

log = logging.getLogger("freshet.probation")

NEW = 8
STRICT_ROWS, STRICT_S = 4096, 2.0


class OutOfLine(Conflict):
    """A delta is not served: it is out of line. kind, reason: see processor.watching.judge.Verdict."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class Vigilance:
    """What the guard of one model has done. held, taken_back: deltas by kind of verdict. preview_s: each of them."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.taken_back: Counter[str] = Counter()
        self.preview_s = Histogram(SHORT_S)


class Probation:
    """The probation of one version's deltas. Used under its model's lock but for `aftermath`, which has its own owner
    (processor.versions.host)."""

    def __init__(self, bounds: Callable[[], DeltaBounds], done: Vigilance) -> None:
        """bounds: as they are now."""
        self._bounds, self._done = bounds, done
        self._guard = DeltaGuard()
        self._figures: list[Figure] = []
        self._verdict = UNJUDGED
        self.aftermath = Aftermath()
        self.log = DeltaLog()
        self.moved = 0
        """The newest step that may have moved the scores of the same rows."""

    def examine(self, version: ServedVersion, delta: Delta, change: Change, judged: bool) -> None:
        """Looks at a delta that could be served. judged: not only to learn from it. Raises OutOfLine."""
        bounds = self._bounds()
        self._figures, self._verdict = [], UNJUDGED
        if bounds.mode == OFF:
            return
        rows = {name: table.rows for name, table in version.tables.items()}
        self._figures = delta_figures(delta, version.look_up, rows, version.dense)
        previewed = self._preview(version, change, bounds)
        if previewed is not None:
            self._done.preview_s.observe(previewed.seconds)
            self._figures += previewed.figures
        verdict = self._guard.judge(bounds, self._figures, delta.events, delta.rows) if judged else None
        if verdict is not None:
            self._done.held[verdict.kind] += 1
            self._note(delta, change.generation.digest, OUT_OF_LINE, reason=verdict.reason)
            raise OutOfLine(verdict.kind, verdict.reason)
        self._verdict = IN_LINE if judged else UNJUDGED

    def served(self, version: ServedVersion, delta: Delta) -> None:
        """The delta that was looked at is served."""
        self._note(delta, version.digest, self._verdict, version)
        self._guard.learn(self._figures, delta.events, delta.rows)
        if not is_quiet(self._bounds(), self._figures):
            self.moved = delta.step

    def replayed(self, version: ServedVersion, delta: Delta) -> None:
        """A delta is served that others have served before, and nobody has looked at."""
        self._figures = []
        self._note(delta, version.digest, REPLAYED, version)

    def _note(
        self, delta: Delta, digest: str, verdict: str, version: ServedVersion | None = None, reason: str = ""
    ) -> None:
        took = (version.last_apply_ms, version.last_freshness_s) if version is not None else (0.0, 0.0)
        entry = DeltaEntry(
            digest, delta.rows, delta.removed, len(delta.dense), delta.events, verdict, reason, *took,
            tuple(self._figures),
        )  # fmt: skip
        self.log.add(entry)

    def _preview(self, version: ServedVersion, change: Change, bounds: DeltaBounds) -> Previewed | None:
        rows, most_s = bounds.preview_rows, bounds.preview_ms / 1e3
        if bounds.mode == STRICT:
            rows, most_s = max(rows, STRICT_ROWS), max(most_s, STRICT_S)
        try:
            return version.preview(change, rows, most_s)
        except Exception as error:
            log.warning("%s could not be previewed: %s", change.generation, error)
            return None
