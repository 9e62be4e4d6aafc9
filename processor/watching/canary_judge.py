"""Judges whether a canary may stay: its errors, its scores that are no numbers, how far they lie from the baseline's.

Pure: evidence comes in, with the time (processor.sessions.canary_trial says what becomes evidence). A window begins
with what has been counted so far and is closed once it is old enough and full enough, so with little traffic it is as
long as it has to be; verdicts are looked for all along.
A share that is above its bound whatever the rest of the window brings is above it now: ten failures out of ten need no
two hundred requests to be told apart from two in a hundred.

Refused: a test of significance for errors (what an operator can state is a share); comparing means alone (a canary that
has turned its scores around may have the same mean).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.watching.sketch import Sketch


@dataclass(frozen=True, slots=True)
class CanaryBounds:
    """The bounds within which a canary may stay. window_s: how long it is watched before counting begins anew.
    min_requests: of each side, for errors and shift; min_scores: of each side, for shift. max_error_share,
    max_nonfinite_share: more than the baseline's; 1 for any. max_score_shift: Scores.shift() of any output."""

    window_s: float = 60.0
    min_requests: int = 200
    min_scores: int = 1000
    max_error_share: float = 0.02
    max_nonfinite_share: float = 0.0
    max_score_shift: float = 0.25

    @classmethod
    def parse(cls, raw: Any, where: str) -> CanaryBounds:
        """The Bounds of JSON or TOML; raises BadInput."""
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: a section wanted, got {json_kind(raw)}")
        known = {f.name: int if f.type == "int" else float for f in fields(cls)}
        read: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in known:
                raise BadInput(f"{where}: unknown key {str(key)[:64]!r}; known: {', '.join(known)}")
            kinds = (int,) if known[key] is int else (int, float)
            least = 1 if known[key] is int or key == "window_s" else 0
            most = 1.0 if key.endswith("_share") else 1e9
            if type(value) not in kinds or not least <= value <= most:
                raise BadInput(f"{where}.{key}: {least} to {most:g} wanted, got {str(value)[:40]!r}")
            read[key] = known[key](value)
        return cls(**read)


class CanaryEvidence(NamedTuple):
    """The evidence for and against a canary: what both sides made of the same requests. canary: requests and rows that
    the split had it answer; its failures, and scores that are no numbers, where the baseline had none; its other scores
    of a sample. baseline: what it made of that sample."""

    baseline: Sketch
    canary: Sketch

    @classmethod
    def none(cls, outputs: int) -> CanaryEvidence:
        """That of a canary with so many outputs whom nobody has asked."""
        return cls(Sketch.empty(outputs), Sketch.empty(outputs))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict, why a canary is to go. kind: errors | nonfinite | shift."""

    kind: str
    reason: str


class CanaryJudge:
    """Judges one canary against one baseline."""

    def __init__(self) -> None:
        self._began: tuple[float, Sketch, Sketch] | None = None

    def look(self, bounds: CanaryBounds, now_s: float, baseline: Sketch, canary: Sketch) -> Verdict | None:
        """baseline, canary: all the evidence that there has been, since whenever."""
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


def weigh(bounds: CanaryBounds, baseline: Sketch, canary: Sketch, traffic: bool = False) -> Verdict | None:
    """Why one side of the evidence is out of the bounds, measured by the other. traffic: scores may have moved because
    other requests have come, so that their shift says nothing."""
    verdict = _errors(bounds, baseline, canary) or _nonfinite(bounds, baseline, canary)
    return verdict if verdict or traffic else _shift(bounds, baseline, canary)


def _errors(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    made = c.requests + c.failed
    theirs = b.failed / max(1, b.requests + b.failed)
    if c.failed <= (theirs + bounds.max_error_share) * max(made, bounds.min_requests):
        return None
    return Verdict(
        "errors",
        f"{c.failed} of {made} requests failed; at most {bounds.max_error_share:.1%} more than the baseline's "
        f"{theirs:.1%} wanted",
    )


def _nonfinite(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    for mine, theirs in zip(c.every(), b.every()):
        # Of what the canary has scored alone the rows are known.
        made = max(mine.count + mine.lost, c.rows)
        share = theirs.lost / max(1, theirs.count + theirs.lost)
        if mine.lost > (share + bounds.max_nonfinite_share) * max(made, bounds.min_scores):
            return Verdict(
                "nonfinite", f"{mine.lost} of {made} scores are NaN or infinite; {share:.1%} of the baseline's"
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
                f"scores have shifted by {shift:.2f}, at most {bounds.max_score_shift:g} wanted: mean {mine.mean:.4g} "
                f"over {mine.count} scores, the baseline's {theirs.mean:.4g} over {theirs.count}",
            )
    return None
