"""Weigh the evidence of one side against another's: errors, non-finite scores and the distance between their scores.

A canary is weighed against its baseline, a served delta or version against what was served before it. Pure. A share
that is above its bound whatever the rest of the window brings is above it now: ten failures out of ten need no two
hundred requests to be distinguished from two in a hundred.

Rejected: a significance test for errors (an operator can state a share); comparing means alone (a canary that has
reversed its scores may have the same mean).
"""

from __future__ import annotations

from freshet_serving.processor.watching.judgements import CanaryBounds, Verdict
from freshet_serving.processor.watching.sketch import Sketch


def weigh(bounds: CanaryBounds, baseline: Sketch, canary: Sketch, traffic: bool = False) -> Verdict | None:
    """Return a verdict if one side of the evidence is out of bounds, measured by the other.

    Args:
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
