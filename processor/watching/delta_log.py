"""The newest deltas of a version on this server: how long each took, how old it was, what judges made of it. Values.

One thread writes (the version's writer), any thread reads: the entries are replaced whole. The change log has what was
published; this is what happened on this server since its start, and is lost with the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshet_serving.processor.watching.judgements import Figure

MOST_ENTRIES = 512
VERDICTS = IN_LINE, OUT_OF_LINE, UNJUDGED, REPLAYED = "in line", "out of line", "not judged", "replayed"


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
        apply_ms: Milliseconds that applying it took.
        age_s: Seconds from its publication until it was served.
        figures: Its figures, as its judges know them.
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
        """Record a delta, dropping the oldest entry if there are more than MOST_ENTRIES."""
        self._entries = (*self._entries[1 - MOST_ENTRIES :], entry)

    def entries(self) -> dict[str, DeltaEntry]:
        """Return the entries by digest; for a delta that came twice, the newer one."""
        return {entry.digest: entry for entry in self._entries}

    def __len__(self) -> int:
        return len(self._entries)


def score_shift(figures: Sequence[Figure]) -> float | None:
    """Return how far the mean score has moved, for the output that moved furthest; None if nothing was scored."""
    return max((figure.value for figure in figures if figure.kind == "bias"), default=None)
