"""Deltas on probation: each is looked at before it is served, and watched for a while after.

Before the flip, in the writer's thread, once its rows are staged and its executables ready: the figures of what it
changes, and of what it would do to the scores of rows that were asked for lately (processor.versions.preview). What is
out of line raises GuardViolation: nothing is flipped, and what was staged is taken back. Who applies the delta then
has the records say so (processor.versions.log_applier, processor.versions.model).

Invariants
- Nothing that readers see was judged by nobody, but for what was recorded when this server started: that is replayed.
  What a start finds others have served, or nobody can know whether they have; it has no request yet to judge it by.
  What comes later in a run is judged whole, as one change from what is served (processor.versions.log_applier).
- What is released is not judged again.
- What is learned is what is served: a delta that fails on the way, or is held, leaves nothing behind.
- A preview that fails costs the delta nothing: it is judged by what else is known of it.
- Nobody outside can know which rows of a delta are looked at: the generator is seeded from the system's entropy.
- A hold is released by a server that knows more than nothing: by scores, or by what it was held by itself; where it
  has not learned what is usual, by the floors.
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
from freshet_serving.processor.errors import Conflict
from freshet_serving.processor.package import Delta
from freshet_serving.processor.tables.remote.remote_table import RemoteTable
from freshet_serving.processor.versions.preview import PreviewResult
from freshet_serving.processor.versions.served_version import ServedVersion, StateChange
from freshet_serving.processor.watching import (
    IN_LINE,
    OF_SCORES,
    OFF,
    OUT_OF_LINE,
    REPLAYED,
    SHORT_S,
    STRICT,
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
"""Rows of a table whose lengths are looked at, once."""
STRICT_ROWS, STRICT_S = 4096, 2.0
ONE, RUN, GATED = "one", "run", "gated"
"""What a change is: a delta, which is held if it is out of line; a run of deltas, which are looked at one by one then;
what is held already, and is released if it is in line."""


class GuardViolation(Conflict):
    """A delta is not served: it is out of line. kind, reason: see processor.watching.canary_judge.Verdict."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class GuardStats:
    """What the guard of one model has done. held, auto_rollbacks: deltas by kind of verdict. released: holds that
    it has lifted by itself. preview_s: each of them."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.auto_rollbacks: Counter[str] = Counter()
        self.released = 0
        self.preview_s = Histogram(SHORT_S)


class PreDeployCheck:
    """The probation of one version's deltas. Used under its model's lock but for `post_deploy_monitor`, which has its
    own owner (processor.versions.host)."""

    def __init__(
        self,
        bounds: Callable[[], DeltaBounds],
        done: GuardStats,
        clock: Clock,
        random: np.random.Generator | None = None,
    ) -> None:
        """bounds: as they are now. random: draws the rows that are looked at; secret, but for tests."""
        self._bounds, self._done, self._clock = bounds, done, clock
        # Seeded by the system where it is not given.
        self._random = random or np.random.default_rng()
        self._guard, self._drift, self._lengths = DeltaGuard(), Drift(), RowLengths()
        self._figures: list[Figure] = []
        self._parent = ""
        self._verdict = UNJUDGED
        # The kind of verdict that this server held the newest hold by, "" where it was another server.
        self._held = ""
        self.post_deploy_monitor = PostDeployMonitor()
        self.log = DeltaLog()
        self.moved = 0
        """The newest step that may have moved the scores of the same rows."""
        self.known = -1
        """Records that were there when what is served was last made what they say: those before are replayed where the
        version is built anew. -1: none of it, at a start."""

    @property
    def judges(self) -> bool:
        """Whether anything is held at all."""
        return self._bounds().mode != OFF

    def examine(
        self, version: ServedVersion, delta: Delta, change: StateChange, judged: bool, asked: str = ONE
    ) -> None:
        """Looks at a change that could be served.

        Args:
            version: that serves what the change begins with.
            delta: all that the change brings, a run of deltas folded into one.
            change: staged and prepared.
            judged: not only to learn from it.
            asked: ONE, RUN or GATED.

        Raises:
            GuardViolation: it is not to be served.
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
        if verdict is not None:
            if asked == ONE:
                self._done.held[verdict.kind] += 1
                self._held = verdict.kind
                self._note(delta, change.generation.digest, OUT_OF_LINE, reason=verdict.reason)
            raise GuardViolation(verdict.kind, verdict.reason)
        self._verdict = IN_LINE if judged else UNJUDGED

    def served(self, version: ServedVersion, delta: Delta, others: Sequence[DeltaEntry] = ()) -> None:
        """What was looked at is served. others: deltas of the run before the newest."""
        for entry in others:
            self.log.add(replace(entry, verdict=self._verdict))
        self._note(delta, version.digest, self._verdict, version)
        self._guard.learn(self._figures, delta.events, delta.rows)
        now_s, bounds = self._clock.now_s(), self._bounds()
        # Only what nobody has judged goes beyond the bound.
        anew = self._too_far(bounds) is not None
        self._drift.serve(self._figures, self._parent, version.digest, now_s, anew)
        for kind, table, value in self._figures:
            if kind == "longest":
                self._lengths.served(table, value, now_s)
        self._held = ""
        if not is_quiet(bounds, self._figures):
            self.moved = delta.step

    def released(self) -> None:
        """A hold was lifted by itself."""
        self._done.released += 1

    def replayed(self, version: ServedVersion, delta: Delta) -> None:
        """A delta is served that others have served before, and nobody has looked at."""
        self._figures = []
        self._note(delta, version.digest, REPLAYED, version)

    def _judge(self, bounds: DeltaBounds, delta: Delta, asked: str) -> Verdict | None:
        caution = False
        if asked == GATED:
            scored = any(figure.kind in OF_SCORES for figure in self._figures)
            blind = self._held and self._held not in (*OF_SCORES, "drift")
            if not scored and not blind:
                return Verdict("unknown", "no row that was asked for can be scored: nobody knows what it does")
            caution = not self._held and not self._guard.knows(bounds)
        # A bad delta is no better for the good ones that have come with it: how much they bring is no excuse.
        events, rows = (delta.events, delta.rows) if asked == ONE else (0, 0)
        return self._guard.judge(bounds, self._figures, events, rows, caution) or self._too_far(bounds)

    def _too_far(self, bounds: DeltaBounds) -> Verdict | None:
        return self._drift.judge(self._figures, self._parent, self._clock.now_s(), bounds.hour, bounds.day)

    def _rows_and_weights(self, version: ServedVersion, delta: Delta) -> list[Figure]:
        # Of rows that are in a row store nobody here can count how many there are.
        rows = {
            name: math.inf if isinstance(table, RemoteTable) else table.rows for name, table in version.tables.items()
        }

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
            log.warning("%s could not be previewed: %s", change.generation, error)
            return None


def entry_of(delta: Delta, digest: str, verdict: str = UNJUDGED) -> DeltaEntry:
    """What a log says of a delta that leads to a generation."""
    return DeltaEntry(digest, delta.rows, delta.removed, len(delta.dense), delta.events, verdict)
