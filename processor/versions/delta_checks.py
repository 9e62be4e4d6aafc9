"""Checks of one version's deltas: ask the judges before a delta is served, and log what became of it.

The check runs before the flip, in the writer's thread, once the delta's rows are staged and its executables are ready.
A delta that a judge objects to raises DeltaHeld: nothing is flipped, and what was staged is taken back. The caller that
applies the delta then records the hold (processor.versions.log_applier, processor.versions.delta_publication).

Invariants
- Everything that readers see has been checked, except what was recorded before this server started: that is replayed.
  Other servers have served it, or it cannot be known whether they did, and a starting server has no requests yet to
  check it with. Deltas that arrive later in one run are checked as a whole, as one change from what is served
  (processor.versions.log_applier).
- A released delta is not checked again. A part that goes back to what was served before is never held.
- Judges learn only from what is served: a delta that fails on the way, or is held, leaves nothing behind.
- The checks outlive a version that is rebuilt in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.versions.judges import ONE, DeltaHeld, DeltaJudge, JudgementCounts
from freshet_serving.processor.versions.served_version import ServedVersion, StateChange
from freshet_serving.processor.watching import (
    IN_LINE,
    OUT_OF_LINE,
    REPLAYED,
    UNJUDGED,
    AutoRollback,
    DeltaEntry,
    DeltaLog,
    Figure,
    LabelSums,
    Sketch,
)


class DeltaChecks:
    """The checks of one version's deltas. Used under its model's lock, except monitored(), look() and tell()."""

    def __init__(self, judges: Sequence[DeltaJudge], counts: JudgementCounts) -> None:
        """Start without having served anything.

        Args:
            judges: Judges of the version's deltas.
            counts: Counts to update.
        """
        self._judges, self._counts = judges, counts
        # Of the change that was examined last.
        self._figures: tuple[Figure, ...] = ()
        self._verdict = UNJUDGED
        self.log = DeltaLog()
        self.known = -1
        """Number of records when the served state last matched them; -1 at a start, when nothing is known.

        Records up to this number are replayed without a check if the version is rebuilt.
        """

    @property
    def judges(self) -> bool:
        """True if deltas can be held at all."""
        return any(judge.judges for judge in self._judges)

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
            served_before: Returns True if all that the change brings was served before; asked only if a judge objects.

        Raises:
            DeltaHeld: The change must not be served.
        """
        self._figures, self._verdict = (), UNJUDGED
        findings = [(judge, judge.examine(version, delta, change, asked)) for judge in self._judges]
        self._figures = tuple(figure for _, finding in findings for figure in finding.figures)
        if not judged or not self.judges:
            return
        for judge, finding in findings:
            if (verdict := finding.verdict) is None:
                continue
            if served_before():
                return
            if asked == ONE:
                self._counts.held[verdict.kind] += 1
                judge.held(verdict)
                self._note(delta, change.generation.digest, OUT_OF_LINE, reason=verdict.reason)
            raise DeltaHeld(verdict.kind, verdict.reason)
        self._verdict = IN_LINE

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
        for judge in self._judges:
            judge.served(version, delta)

    def released(self) -> None:
        """Count a hold that was lifted automatically."""
        self._counts.released += 1

    def replayed(self, version: ServedVersion, delta: Delta) -> None:
        """Record a delta that is served without a check, because it was recorded before.

        Args:
            version: The version that serves it.
            delta: The delta.
        """
        self._figures = ()
        self._note(delta, version.digest, REPLAYED, version)

    def monitored(self, generation: Generation) -> bool:
        """Report whether a served generation is not yet known to be good."""
        return any(judge.monitored(generation) for judge in self._judges)

    def look(self, now_s: float, generation: Generation, sketch: Sketch, released: int) -> AutoRollback | None:
        """Judge what is served; return the rollback to make, or None.

        Args:
            now_s: Monotonic seconds.
            generation: The generation that is served.
            sketch: All counts of the version so far.
            released: The newest step that a person has released.
        """
        rollbacks = [judge.look(now_s, generation, sketch, released) for judge in self._judges]
        return next((rollback for rollback in rollbacks if rollback is not None), None)

    def tell(self, generation: Generation, evidence: LabelSums) -> None:
        """Add label sums of rows that a generation has scored.

        Args:
            generation: The generation that scored the rows.
            evidence: Sums over these rows.
        """
        for judge in self._judges:
            judge.tell(generation, evidence)

    def _note(
        self, delta: Delta, digest: str, verdict: str, version: ServedVersion | None = None, reason: str = ""
    ) -> None:
        took = (version.last_apply_ms, version.last_freshness_s) if version is not None else (0.0, 0.0)
        entry = entry_of(delta, digest, verdict)
        self.log.add(replace(entry, reason=reason, figures=self._figures, apply_ms=took[0], age_s=took[1]))


def entry_of(delta: Delta, digest: str, verdict: str = UNJUDGED) -> DeltaEntry:
    """Return the log entry of a delta.

    Args:
        delta: The delta.
        digest: Digest of the generation that it leads to.
        verdict: Result of the check.
    """
    return DeltaEntry(digest, delta.rows, delta.removed, len(delta.dense), delta.events, verdict)
