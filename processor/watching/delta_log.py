"""What became of a version's newest deltas on this server: how long each took, how old it was, what the guard found.

Values. One thread writes (the version's writer), any reads: the entries are replaced whole. The chain has what was
published; this is what happened here since the start, and is forgotten with the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshet_serving.processor.watching.delta_figures import Figure

MOST_ENTRIES = 512
VERDICTS = IN_LINE, OUT_OF_LINE, UNJUDGED, REPLAYED = "in line", "out of line", "not judged", "replayed"


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """One delta. digest: of the generation that it leads to. dense: how many dense tensors it brought. events: rows of
    training that it has learned from, 0 where it does not say. age_s: from its publication until it was served.
    verdict: one of VERDICTS; reason: of one that is out of line. figures: see processor.watching.delta_figures."""

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
        """Notes a delta; the oldest entry goes where there are too many."""
        self._entries = (*self._entries[1 - MOST_ENTRIES :], entry)

    def entries(self) -> dict[str, DeltaEntry]:
        """What is known, by digest; of a delta that came twice the newer entry."""
        return {entry.digest: entry for entry in self._entries}

    def __len__(self) -> int:
        return len(self._entries)


def score_shift(figures: Sequence[Figure]) -> float | None:
    """How far the mean score has moved, of the output that has moved furthest; None where nothing was scored."""
    return max((figure.value for figure in figures if figure.kind == "bias"), default=None)
