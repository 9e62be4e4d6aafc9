"""Weigh the evidence of one side against another's: errors, non-finite scores and the distance between their scores.

A canary is weighed against its baseline, a served delta or version against what was served before it. Pure. A share
that is above its bound whatever the rest of the window brings is above it now: ten failures out of ten need no two
hundred requests to be distinguished from two in a hundred.

Rejected: a significance test for errors (an operator can state a share); comparing means alone (a canary that has
reversed its scores may have the same mean).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.watching.sketch import Sketch


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
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: expected a section, got {json_kind(raw)}")
        known = {f.name: int if f.type == "int" else float for f in fields(cls)}
        read: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in known:
                raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(known)}")
            kinds = (int,) if known[key] is int else (int, float)
            least = 1 if known[key] is int or key == "window_s" else 0
            most = 1.0 if key.endswith("_share") else 1e9
            if type(value) not in kinds or not least <= value <= most:
                raise BadInput(f"{where}.{key}: expected {least} to {most:g}, got {str(value)[:40]!r}")
            read[key] = known[key](value)
        return cls(**read)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict against a canary or a delta.

    Attributes:
        kind: errors | nonfinite | shift; for a delta also the kind of a figure, drift or calibration.
        reason: Explanation for people.
    """

    kind: str
    reason: str


def weigh(bounds: CanaryBounds, baseline: Sketch, canary: Sketch, traffic: bool = False) -> Verdict | None:
    """Return a verdict if one side of the evidence is out of bounds, measured by the other.

    Args:
        bounds: The configured bounds.
        baseline: Evidence of the side that is measured by.
        canary: Evidence of the side that is judged.
        traffic: True if scores may have moved because the requests are different ones; their shift is then ignored.
    """
    verdict = _errors(bounds, baseline, canary) or _nonfinite(bounds, baseline, canary)
    return verdict if verdict or traffic else _shift(bounds, baseline, canary)


def _errors(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    made = c.requests + c.failed
    theirs = b.failed / max(1, b.requests + b.failed)
    if c.failed <= (theirs + bounds.max_error_share) * max(made, bounds.min_requests):
        return None
    return Verdict(
        "errors",
        f"{c.failed} of {made} requests failed; limit {bounds.max_error_share:.1%} more than the baseline's "
        f"{theirs:.1%}",
    )


def _nonfinite(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    for mine, theirs in zip(c.every(), b.every()):
        # Outside the sample only the canary's rows are counted, not its finite scores.
        made = max(mine.count + mine.lost, c.rows)
        share = theirs.lost / max(1, theirs.count + theirs.lost)
        if mine.lost > (share + bounds.max_nonfinite_share) * max(made, bounds.min_scores):
            return Verdict(
                "nonfinite", f"{mine.lost} of {made} scores are NaN or infinite, {share:.1%} of the baseline's"
            )
    return None


def _shift(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    if min(b.requests, c.requests) < bounds.min_requests:
        return None
    for mine, theirs in zip(c.every(), b.every()):
        if min(mine.count, theirs.count) < bounds.min_scores:
            continue
        shift = mine.shift(theirs)
        if shift > bounds.max_score_shift:
            return Verdict(
                "shift",
                f"scores have shifted by {shift:.2f}, limit {bounds.max_score_shift:g}: mean {mine.mean:.4g} "
                f"over {mine.count} scores, the baseline's {theirs.mean:.4g} over {theirs.count}",
            )
    return None
