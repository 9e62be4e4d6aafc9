"""Judge whether a canary may stay, by its errors, its non-finite scores and their distance from the baseline's.

Pure: evidence and the time are arguments (canary_trial defines what becomes evidence). A window begins with the counts
so far and is closed once it is old enough and full enough, so with little traffic it is as long as necessary; verdicts
are sought all along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from freshet_serving.processor.watching import CanaryBounds, Sketch, Verdict
from freshet_serving.processor.watching.verdicts import weigh


class CanaryEvidence(NamedTuple):
    """The evidence for and against a canary: what both sides made of the same requests.

    Of the canary there are requests and rows that the split sent to it, failures and non-finite scores where the
    baseline had none, and, as of the baseline, scores of a sample.
    """

    baseline: Sketch
    canary: Sketch

    @classmethod
    def none(cls, outputs: int) -> Self:
        """Return the evidence of a canary with so many outputs that has had no request."""
        return cls(Sketch.empty(outputs), Sketch.empty(outputs))

    @classmethod
    def from_json(cls, outputs: int, sides: Sequence[Any] | None) -> Self:
        """Return the evidence of CanaryTrials.evidence(), or a sum of such; None for none."""
        return cls(*(Sketch.from_json(outputs, side) for side in sides)) if sides else cls.none(outputs)


class CanaryJudge:
    def __init__(self) -> None:
        self._began: tuple[float, Sketch, Sketch] | None = None

    def look(self, bounds: CanaryBounds, now_s: float, baseline: Sketch, canary: Sketch) -> Verdict | None:
        """Judge the canary by all evidence up to now; return the verdict if the canary must go, else None."""
        if self._began is None:
            self._began = (now_s, baseline, canary)
            return None
        began_s, baseline_then, canary_then = self._began
        b, c = baseline.since(baseline_then), canary.since(canary_then)
        if b is None or c is None:
            self._began = (now_s, baseline, canary)
            return None
        verdict = weigh(bounds, b, c)
        if now_s - began_s >= bounds.window_s and min(b.requests, c.requests) >= bounds.min_requests:
            self._began = (now_s, baseline, canary)
        return verdict
