"""The bounds that an operator sets, and what judges and those who act on their verdicts exchange. Values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.generation import GUARD_MODES, ON, Generation

LEAST_ROWS = 32
"""The least number of rows that a figure of scores is computed from."""
VERDICTS = IN_LINE, OUT_OF_LINE, UNJUDGED, REPLAYED = "in line", "out of line", "not judged", "replayed"
"""What became of a delta, or of a version."""
MOST_NONFINITE = 0.01
"""Largest share of non-finite served scores: a request may provoke one, so a few are not the delta's fault."""


class Figure(NamedTuple):
    """One figure of a delta, of a kind that its judge defines; `what` is the table or output, "" for all together."""

    kind: str
    what: str
    value: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict of kind errors, nonfinite or shift; of a delta also of a figure's kind, drift or calibration."""

    kind: str
    reason: str


class Finding(NamedTuple):
    """A judge's figures of a change that is ready to be served; without a verdict it may be served."""

    figures: tuple[Figure, ...] = ()
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class AutoRollback:
    """A verdict to roll back what is served; `bad` is the first generation to undo."""

    bad: Generation
    good: Generation
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class VersionRollback:
    """A verdict to withdraw version `bad` and go back to version `good`."""

    bad: int
    good: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LabelSums:
    """Sums over rows that a generation scored and whose labels have come."""

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
    """The effect of a state on the scores of so many rows, computed in so many seconds."""

    rows: int
    seconds: float
    figures: list[Figure]


@dataclass(frozen=True, slots=True, eq=False)
class RequestScores:
    """Scores of kept requests under one version.

    Attributes:
        scored: bool [rows].
        refused: bool [rows], the rows that the version cannot read. For others there was no time.
        outputs: By output name, float32 [rows, columns]; only rows that are scored have a meaning.
        lookups: Looked-up ids of the rows that it reads, and those of them without a row.
    """

    scored: NDArray[np.bool_]
    refused: NDArray[np.bool_]
    outputs: Mapping[str, NDArray[np.float32]]
    lookups: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class CanaryBounds:
    """Bounds within which a canary may stay.

    Attributes:
        window_s: Seconds for which it is watched before counting begins again.
        min_requests: Requests of each side that errors and shift are judged on.
        min_scores: Scores of each side that shift is judged on.
        max_error_share: Largest share of failures above the baseline's; 1 for any.
        max_nonfinite_share: Largest share of non-finite scores above the baseline's; 1 for any.
        max_score_shift: Largest Scores.shift() of any output.
    """

    window_s: float = 60.0
    min_requests: int = 200
    min_scores: int = 1000
    max_error_share: float = 0.02
    max_nonfinite_share: float = 0.0
    max_score_shift: float = 0.25

    @classmethod
    def parse(cls, raw: Any, where: str) -> CanaryBounds:
        """Read bounds from a section of JSON or TOML, named `where`; raise BadInput."""
        return cls(**_read(cls, raw, where, _extent_of_canary))


@dataclass(frozen=True, slots=True)
class DeltaBounds:
    """Bounds on what a delta may do to a model. Fields without an entry are floors of the guard's figures of that name.

    Attributes:
        mode: One of GUARD_MODES; strict scores every recorded row.
        hour: Largest factor by which the mean score may rise or fall within an hour.
        day: The same within a day.
        factor: Largest multiple of what is usual.
        learn: Deltas until something is usual.
        preview_ms: Milliseconds that scoring rows may cost a delta.
        preview_rows: Largest number of rows that are scored.
        watch_s: Seconds for which a delta is monitored once it is served.
        max_drift: Largest Scores.shift() of the scores that it serves.
        max_miscalibration: Largest relative change of calibration.
    """

    mode: str = ON
    bias: float = 0.05
    spread: float = 0.25
    disorder: float = 0.05
    moved: float = 0.5
    size: float = 0.7
    longest: float = 5.0
    new: float = 1.0
    removed: float = 0.5
    dense: float = 0.1
    hour: float = 3.0
    day: float = 6.0
    factor: float = 3.0
    learn: int = 8
    preview_ms: float = 2.0
    preview_rows: int = 256
    watch_s: float = 60.0
    max_drift: float = 1.0
    max_miscalibration: float = 0.2

    @property
    def served(self) -> CanaryBounds:
        """Bounds of a delta once it is served."""
        return CanaryBounds(window_s=self.watch_s, max_nonfinite_share=MOST_NONFINITE, max_score_shift=self.max_drift)

    @classmethod
    def parse(cls, raw: Any, where: str) -> DeltaBounds:
        """Read bounds, see CanaryBounds.parse."""
        return cls(**_read(cls, raw, where, _extent_of_delta))


def _extent_of_canary(key: str, whole: bool) -> tuple[int, float]:
    return 1 if whole or key == "window_s" else 0, 1.0 if key.endswith("_share") else 1e9


def _extent_of_delta(key: str, whole: bool) -> tuple[int, float]:
    return (1, 100_000) if whole or key in ("factor", "hour", "day") else (0, 1e9)


def _read(bounds: type, raw: Any, where: str, extent: Callable[[str, bool], tuple[int, float]]) -> dict[str, Any]:
    """Read the fields of bounds; `extent` returns a key's least and largest value, given whether it is whole."""
    if not isinstance(raw, dict):
        raise BadInput(f"{where}: expected a section, got {json_kind(raw)}")
    types = {f.name: f.type for f in fields(bounds)}
    read: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in types:
            raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(types)}")
        if types[key] == "str":
            if value not in GUARD_MODES:
                raise BadInput(f"{where}.{key}: expected one of {', '.join(GUARD_MODES)}, got {str(value)[:40]!r}")
            read[key] = value
            continue
        whole = types[key] == "int"
        least, most = extent(key, whole)
        if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
            raise BadInput(f"{where}.{key}: expected {least} to {most:g}, got {str(value)[:40]!r}")
        read[key] = value if whole else float(value)
    return read
