"""Bounds that an operator sets for what is judged: canaries, deltas and versions. Pure values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.generation import GUARD_MODES, ON

MOST_NONFINITE = 0.01
"""Largest share of non-finite served scores: a request may provoke one, so a few are not the delta's fault."""


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
        """Read bounds from JSON or TOML.

        Args:
            raw: The parsed section.
            where: Its name, for messages.

        Raises:
            BadInput: If it is not a section with known keys and values in range.
        """
        return cls(**_read(cls, raw, where, _extent_of_canary))


@dataclass(frozen=True, slots=True)
class DeltaBounds:
    """Bounds on what a delta may do to a model. The floors are of the figures of the guard.

    Attributes:
        mode: One of GUARD_MODES; strict scores every recorded row.
        bias: Floor of bias.
        spread: Floor of spread.
        disorder: Floor of disorder.
        moved: Floor of moved.
        size: Floor of size.
        longest: Floor of longest.
        new: Floor of new.
        removed: Floor of removed.
        dense: Floor of dense.
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
        """Bounds within which a delta may stay once it is served."""
        return CanaryBounds(window_s=self.watch_s, max_nonfinite_share=MOST_NONFINITE, max_score_shift=self.max_drift)

    @classmethod
    def parse(cls, raw: Any, where: str) -> DeltaBounds:
        """Read bounds from JSON or TOML.

        Args:
            raw: The parsed section.
            where: Its name, for messages.

        Raises:
            BadInput: If it is not a section with known keys and values in range.
        """
        return cls(**_read(cls, raw, where, _extent_of_delta))


def _extent_of_canary(key: str, whole: bool) -> tuple[int, float]:
    return 1 if whole or key == "window_s" else 0, 1.0 if key.endswith("_share") else 1e9


def _extent_of_delta(key: str, whole: bool) -> tuple[int, float]:
    return (1, 100_000) if whole or key in ("factor", "hour", "day") else (0, 1e9)


def _read(bounds: type, raw: Any, where: str, extent: Callable[[str, bool], tuple[int, float]]) -> dict[str, Any]:
    """Read the fields of bounds from a section.

    Args:
        bounds: The class.
        raw: The parsed section.
        where: Its name, for messages.
        extent: Returns the least and the largest value of a key, from its name and True for whole numbers.
    """
    if not isinstance(raw, dict):
        raise BadInput(f"{where}: expected a section, got {json_kind(raw)}")
    known = {f.name: f.type for f in fields(bounds)}
    read: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(known)}")
        if known[key] == "str":
            if value not in GUARD_MODES:
                raise BadInput(f"{where}.{key}: expected one of {', '.join(GUARD_MODES)}, got {str(value)[:40]!r}")
            read[key] = value
            continue
        whole = known[key] == "int"
        least, most = extent(key, whole)
        if type(value) not in ((int,) if whole else (int, float)) or not least <= value <= most:
            raise BadInput(f"{where}.{key}: expected {least} to {most:g}, got {str(value)[:40]!r}")
        read[key] = value if whole else float(value)
    return read
