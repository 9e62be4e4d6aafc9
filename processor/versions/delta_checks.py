"""Checks of one version's deltas: ask the judges before a delta is served, and log the results.

The check runs before the flip, in the writer's thread, once the delta's rows are staged and its executables are ready.
If a judge objects, DeltaHeld is raised, nothing is flipped and what was staged is undone; the caller records the hold
(processor.versions.log_applier, processor.versions.loaded_version).

Invariants
- Everything that readers see has been checked, except what was recorded before this server started: that is replayed.
  Other servers may have served it, and a starting server has no requests to check it with. Deltas that arrive later in
  one run are checked as one change (processor.versions.log_applier).
- A released delta is not checked again. A part that goes back to what was served before is never held.
- Judges learn only from what is served.
- The checks outlive a version that is rebuilt in memory.
- One thread (the version's writer) writes the log of the newest deltas, any thread reads it: its entries are replaced
  whole. It has what happened on this server since its start, and is lost with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import Delta
from freshet_serving.processor.versions.changes import StateChange
from freshet_serving.processor.versions.judges import ONE, DeltaHeld, DeltaJudge, JudgementCounts
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.watching import (
    IN_LINE,
    OUT_OF_LINE,
    REPLAYED,
    UNJUDGED,
    AutoRollback,
    Figure,
    LabelSums,
    Sketch,
)

MOST_ENTRIES = 512


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """One delta in the DeltaLog.

    Attributes:
        digest: Digest of the generation that it leads to.
        rows: Rows that it upserts.
        removed: Rows that it removes.
        dense: Dense tensors that it replaces.
        events: Training events that it has learned from, 0 if it does not state them.
        verdict: One of VERDICTS.
        reason: The guard's reason if it is out of line.
        age_s: Seconds from its publication until it was served.
    """

    digest: str
    rows: int
    removed: int
    dense: int
    events: int
    verdict: str
    reason: str = ""
    apply_ms: float = 0.0
    age_s: float = 0.0
    figures: tuple[Figure, ...] = ()


class DeltaLog:
    """The entries of the newest deltas, by digest."""

    def __init__(self) -> None:
        self._entries: tuple[DeltaEntry, ...] = ()

    def add(self, entry: DeltaEntry) -> None:
        """Record a delta, dropping the oldest beyond MOST_ENTRIES."""
        self._entries = (*self._entries[1 - MOST_ENTRIES :], entry)

    def entries(self) -> dict[str, DeltaEntry]:
        """Return the entries by digest; for a repeated delta the newer one."""
        return {entry.digest: entry for entry in self._entries}

    def __len__(self) -> int:
        return len(self._entries)


class DeltaChecks:
    """The checks of one version's deltas. Used under its model's lock, except monitored(), look() and tell()."""

    def __init__(self, judges: Sequence[DeltaJudge], counts: JudgementCounts) -> None:
        self._judges, self._counts = judges, counts
        # Results for the change that was examined last.
        self._figures: tuple[Figure, ...] = ()
        self._verdict = UNJUDGED
        self.log = DeltaLog()
        self.known = -1
        """Number of records when the served state last matched them; -1 at a start.

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
        """Check a change (DeltaJudge.examine) that is ready to be served; raise DeltaHeld if it must not be.

        Unless `judged`, judges only learn from it. served_before() is asked if one objects.
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
        """Record that the checked delta (a run folded into one) is served, with the run's other deltas."""
        for entry in others:
            self.log.add(replace(entry, verdict=self._verdict))
        self._note(delta, version.digest, self._verdict, version)
        for judge in self._judges:
            judge.served(version, delta)

    def released(self) -> None:
        """Count a hold that was lifted automatically."""
        self._counts.released += 1

    def replayed(self, version: ServedVersion, delta: Delta) -> None:
        """Record a delta that is served without a check, because it was recorded before."""
        self._figures = ()
        self._note(delta, version.digest, REPLAYED, version)

    def monitored(self, generation: Generation) -> bool:
        """Report whether a served generation is not yet known to be good."""
        return any(judge.monitored(generation) for judge in self._judges)

    def look(self, now_s: float, generation: Generation, sketch: Sketch, released: int) -> AutoRollback | None:
        """Judge what is served; return the rollback to make, or None (DeltaJudge.look)."""
        rollbacks = [judge.look(now_s, generation, sketch, released) for judge in self._judges]
        return next((rollback for rollback in rollbacks if rollback is not None), None)

    def tell(self, generation: Generation, evidence: LabelSums) -> None:
        """Add label sums of rows that a generation has scored."""
        for judge in self._judges:
            judge.tell(generation, evidence)

    def _note(
        self, delta: Delta, digest: str, verdict: str, version: ServedVersion | None = None, reason: str = ""
    ) -> None:
        took = (version.last_apply_ms, version.last_freshness_s) if version is not None else (0.0, 0.0)
        entry = entry_of(delta, digest, verdict)
        self.log.add(replace(entry, reason=reason, figures=self._figures, apply_ms=took[0], age_s=took[1]))


def entry_of(delta: Delta, digest: str, verdict: str = UNJUDGED) -> DeltaEntry:
    return DeltaEntry(digest, delta.rows, delta.removed, len(delta.dense), delta.events, verdict)
