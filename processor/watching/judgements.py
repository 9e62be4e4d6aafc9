"""Values that judges, and those who act on what they say, exchange. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation

LEAST_ROWS = 32
"""The least number of rows that a figure of scores is computed from."""
VERDICTS = IN_LINE, OUT_OF_LINE, UNJUDGED, REPLAYED = "in line", "out of line", "not judged", "replayed"
"""What became of a delta, or of a version."""


class Figure(NamedTuple):
    """One figure of a delta.

    Attributes:
        kind: Name of the figure, which its judge defines.
        what: The table or output, "" for all together.
        value: The figure.
    """

    kind: str
    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict against a canary or a delta.

    Attributes:
        kind: errors | nonfinite | shift; for a delta also the kind of a figure, drift or calibration.
        reason: Explanation for people.
    """

    kind: str
    reason: str


class Finding(NamedTuple):
    """The finding of a judge on a change of a version that is ready to be served.

    Attributes:
        figures: Figures of the change, for the log.
        verdict: The reason why it must not be served; None if it may.
    """

    figures: tuple[Figure, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class AutoRollback:
    """A verdict to roll back what is served.

    Attributes:
        bad: The first generation to undo.
        good: The generation to go back to.
        verdict: The reason.
    """

    bad: Generation
    good: Generation
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VersionRollback:
    """A verdict to go back to another version.

    Attributes:
        bad: The version to withdraw.
        good: The version to go back to.
        verdict: The reason.
    """

    bad: int
    good: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LabelSums:
    """Sums over rows that a generation scored and whose labels have come.

    Attributes:
        scores: Sum of the scores.
        labels: Sum of the labels.
        rows: Number of rows.
    """

    scores: float = 0.0
    labels: float = 0.0
    rows: int = 0

    def __add__(self, other: LabelSums) -> LabelSums:
        return LabelSums(self.scores + other.scores, self.labels + other.labels, self.rows + other.rows)

    def validate(self) -> None:
        """Raise BadInput unless these can be sums over so many rows, each with a score and a label from 0 to 1."""
        for name, value in (("scores", self.scores), ("labels", self.labels)):
            if not 0 <= value <= self.rows:
                raise BadInput(f"{name}: expected a sum from 0 to {self.rows}, the number of rows, got {value:g}")

    def half(self) -> LabelSums:
        return LabelSums(self.scores / 2, self.labels / 2, self.rows // 2)


class PreviewResult(NamedTuple):
    """The effect of a state on scores.

    Attributes:
        rows: Number of rows that were scored.
        seconds: Seconds that the preview took.
        figures: Figures that compare the scores.
    """

    rows: int
    seconds: float
    figures: list[Figure]


@dataclass(frozen=True, slots=True, eq=False)
class RequestScores:
    """Scores of kept requests under one version.

    Attributes:
        scored: bool [rows], the rows that were scored.
        refused: bool [rows], the rows that the version cannot read. For others there was no time.
        outputs: By output name, float32 [rows, columns]; only rows that are scored have a meaning.
        lookups: Looked-up ids of the rows that it reads, and those of them without a row.
    """

    scored: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    outputs: Mapping[str, NDArray[np.float32]]
    lookups: tuple[int, int] = (0, 0)
