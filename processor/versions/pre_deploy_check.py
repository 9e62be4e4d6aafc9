"""Check deltas before they are served (delta guard), and keep what post-deployment monitoring needs.

The check runs before the flip, in the writer's thread, once the delta's rows are staged and its executables are ready.
It computes figures of what the delta changes, and of its effect on the scores of recently requested rows
(processor.versions.preview). A delta that is out of line raises GuardViolation: nothing is flipped, and what was staged
is taken back. The caller that applies the delta then records the hold (processor.versions.log_applier,
processor.versions.model).

Invariants
- Everything that readers see has been checked, except what was recorded before this server started: that is replayed.
  Other servers have served it, or it cannot be known whether they did, and a starting server has no requests yet to
  check it with. Deltas that arrive later in one run are checked as a whole, as one change from what is served
  (processor.versions.log_applier).
- A released delta is not checked again. A part that goes back to what was served before is never held.
- The guard learns only from what is served: a delta that fails on the way, or is held, leaves nothing behind.
- A failed preview does not count against the delta: it is checked by the other figures.
- The rows of a delta that are sampled cannot be predicted from outside: the generator is seeded from the system's
  entropy.
- A server releases a hold only with evidence: by scores, or if it held the delta itself for another reason than scores.
  Where it has not learned what is usual, the floors apply.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import Conflict, shortage
from freshet_serving.processor.generation import OFF, STRICT
from freshet_serving.processor.package import Delta
from freshet_serving.processor.versions.preview import PreviewResult
from freshet_serving.processor.versions.served_version import ServedVersion, StateChange
from freshet_serving.processor.watching import (
    IN_LINE,
    OF_SCORES,
    OUT_OF_LINE,
    REPLAYED,
    SHORT_S,
    UNJUDGED,
    DeltaBounds,
    DeltaEntry,
    DeltaGuard,
    DeltaLog,
    Drift,
    Figure,
    Histogram,
    PostDeployMonitor,
    RowLengths,
    Verdict,
    is_quiet,
    longest_row,
)
from freshet_serving.processor.watching.delta_figures import delta_figures

log = logging.getLogger("freshet.guard")

LENGTHS_OF = 256
"""Rows of a table whose lengths are measured, once."""
STRICT_ROWS, STRICT_S = 4096, 2.0
ONE, RUN, GATED = "one", "run", "gated"
"""Kinds of change.

ONE is one delta, which is held if it is out of line. RUN is a run of deltas, which are checked one by one if it is out
of line. GATED is held deltas, which are released if they are in line.
"""


class GuardViolation(Conflict):
    """A delta is not served because it is out of line.

    Attributes:
        kind: Kind of violation (processor.watching.verdicts.Verdict).
        reason: Reason for people.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class GuardStats:
    """Statistics of the guard of one model.

    Attributes:
        held: Held deltas, by kind of verdict.
        auto_rollbacks: Automatically rolled back deltas, by kind of verdict.
        released: Number of holds that the guard has lifted automatically.
        preview_s: Histogram of the seconds of each preview.
    """

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.auto_rollbacks: Counter[str] = Counter()
        self.released = 0
        self.preview_s = Histogram(SHORT_S)


class PreDeployCheck:
    """The delta checks of one version.

    Used under its model's lock, except `post_deploy_monitor`, which has its own owner (processor.versions.host).
    """

    def __init__(
        self,
        bounds: Callable[[], DeltaBounds],
        done: GuardStats,
        clock: Clock,
        random: np.random.Generator | None = None,
    ) -> None:
        """Start without any knowledge of usual deltas.

        Args:
            bounds: Returns the current bounds.
            done: Statistics to update.
            clock: Source of time.
            random: Generator that selects the sampled rows; secret, except in tests.
        """
        self._bounds, self._done, self._clock = bounds, done, clock
        # Seeded by the system if it is not given.
        self._random = random or np.random.default_rng()
        self._guard, self._drift, self._lengths = DeltaGuard(), Drift(), RowLengths()
        self._figures: list[Figure] = []
        self._parent = ""
        self._verdict = UNJUDGED
        # Kind of verdict for which this server set the newest hold, "" if another server set it.
        self._held = ""
        self.post_deploy_monitor = PostDeployMonitor()
        self.log = DeltaLog()
        self.moved = 0
        """The newest step that may have changed the scores of the same rows."""
        self.known = -1
        """Number of records when the served state last matched them; -1 at a start, when nothing is known.

        Records up to this number are replayed without a check if the version is rebuilt.
        """

    @property
    def judges(self) -> bool:
        """True if deltas can be held at all."""
        return self._bounds().mode != OFF

    def examine(
        self,
        version: ServedVersion,
        delta: Delta,
        change: StateChange,
        judged: bool,
        asked: str = ONE,
        served_before: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check a change that is ready to be served.

        Args:
            version: The version; it serves the state that the change begins with.
            delta: Everything that the change brings, a run of deltas folded into one.
            change: The change, staged and prepared.
            judged: False to learn from it only.
            asked: ONE, RUN or GATED.
            served_before: Returns True if all that the change brings was served before; asked only if it is out of
                line.

        Raises:
            GuardViolation: The change must not be served.
        """
        bounds = self._bounds()
        self._figures, self._parent, self._verdict = [], version.digest, UNJUDGED
        if bounds.mode == OFF:
            return
        self._figures = self._rows_and_weights(version, delta)
        previewed = self._preview(version, change, bounds)
        if previewed is not None:
            self._done.preview_s.observe(previewed.seconds)
            self._figures += previewed.figures
        verdict = self._judge(bounds, delta, asked) if judged else None
        if verdict is not None and served_before():
            verdict, judged = None, False
        if verdict is not None:
            if asked == ONE:
                self._done.held[verdict.kind] += 1
                self._held = verdict.kind
                self._note(delta, change.generation.digest, OUT_OF_LINE, reason=verdict.reason)
            raise GuardViolation(verdict.kind, verdict.reason)
        self._verdict = IN_LINE if judged else UNJUDGED

    def served(self, version: ServedVersion, delta: Delta, others: Sequence[DeltaEntry] = ()) -> None:
        """Record that the checked change is served.

        Args:
            version: The version that serves it.
            delta: The delta, a run folded into one.
            others: The deltas of the run before the newest.
        """
        for entry in others:
            self.log.add(replace(entry, verdict=self._verdict))
        self._note(delta, version.digest, self._verdict, version)
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
            self.moved = delta.step

    def released(self) -> None:
        """Count a hold that was lifted automatically."""
        self._done.released += 1

    def replayed(self, version: ServedVersion, delta: Delta) -> None:
        """Record a delta that is served without a check, because it was recorded before.

        Args:
            version: The version that serves it.
            delta: The delta.
        """
        self._figures = []
        self._note(delta, version.digest, REPLAYED, version)

    def _judge(self, bounds: DeltaBounds, delta: Delta, asked: str) -> Verdict | None:
        caution = False
        if asked == GATED:
            scored = any(figure.kind in OF_SCORES for figure in self._figures)
            blind = self._held and self._held not in (*OF_SCORES, "drift")
            if not scored and not blind:
                return Verdict("unknown", "none of the sampled rows can be scored, so its effect is unknown")
            caution = not self._held and not self._guard.knows(bounds)
        # Good deltas in the same run do not excuse a bad one, so their size is not credited.
        events, rows = (delta.events, delta.rows) if asked == ONE else (0, 0)
        return self._guard.judge(bounds, self._figures, events, rows, caution) or self._too_far(bounds)

    def _too_far(self, bounds: DeltaBounds) -> Verdict | None:
        return self._drift.judge(self._figures, self._parent, self._clock.now_s(), bounds.hour, bounds.day)

    def _rows_and_weights(self, version: ServedVersion, delta: Delta) -> list[Figure]:
        # The number of rows in a row store is not known here.
        rows = {name: math.inf if table.rows_elsewhere else table.rows for name, table in version.tables.items()}

        def longest(table: str, known: NDArray[np.float32]) -> float:
            length = self._lengths.longest(table)
            if length is None:
                keys = version.tables[table].some_keys(LENGTHS_OF, self._random.random())
                length = max(longest_row(known), longest_row(version.look_up(table, keys)[1]))
                if length:
                    self._lengths.begin(table, length, self._clock.now_s())
            return length

        return delta_figures(delta, version.look_up, rows, version.dense, self._random, longest)

    def _note(
        self, delta: Delta, digest: str, verdict: str, version: ServedVersion | None = None, reason: str = ""
    ) -> None:
        took = (version.last_apply_ms, version.last_freshness_s) if version is not None else (0.0, 0.0)
        figures = tuple(self._figures)
        entry = entry_of(delta, digest, verdict)
        self.log.add(replace(entry, reason=reason, figures=figures, apply_ms=took[0], age_s=took[1]))

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


def entry_of(delta: Delta, digest: str, verdict: str = UNJUDGED) -> DeltaEntry:
    """Return the log entry of a delta.

    Args:
        delta: The delta.
        digest: Digest of the generation that it leads to.
        verdict: Result of the check.
    """
    return DeltaEntry(digest, delta.rows, delta.removed, len(delta.dense), delta.events, verdict)
