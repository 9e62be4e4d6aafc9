"""Weigh the evidence of one side against another's: errors, non-finite scores and the distance between their scores.

A canary is weighed against its baseline, a served delta or version against what was served before it. Pure. A share
that is above its bound whatever the rest of the window brings is above it now: ten failures out of ten suffice.

Rejected: a significance test for errors (an operator can state a share); comparing means alone (a canary that has
reversed its scores may have the same mean).
"""

from __future__ import annotations

from freshet_serving.processor.watching.judgements import CanaryBounds, Verdict
from freshet_serving.processor.watching.sketch import Sketch


def weigh(bounds: CanaryBounds, baseline: Sketch, canary: Sketch, traffic: bool = False) -> Verdict | None:
    """Return a verdict if the canary is out of bounds, measured by the baseline.

    With `traffic` scores may have moved because the requests are different ones; their shift is then ignored.
    """
    verdict = _errors(bounds, baseline, canary) or _nonfinite(bounds, baseline, canary)
    return verdict if verdict or traffic else _shift(bounds, baseline, canary)


def _errors(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    requests = c.requests + c.failed
    share = b.failed / max(1, b.requests + b.failed)
    if c.failed <= (share + bounds.max_error_share) * max(requests, bounds.min_requests):
        return None
    return Verdict(
        "errors",
        f"{c.failed} of {requests} requests failed; limit {bounds.max_error_share:.1%} more than the baseline's "
        f"{share:.1%}",
    )


def _nonfinite(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    for canary, baseline in zip(c.every(), b.every()):
        # Outside the sample only the canary's rows are counted, not its finite scores.
        scores = max(canary.count + canary.lost, c.rows)
        share = baseline.lost / max(1, baseline.count + baseline.lost)
        if canary.lost > (share + bounds.max_nonfinite_share) * max(scores, bounds.min_scores):
            return Verdict(
                "nonfinite", f"{canary.lost} of {scores} scores are NaN or infinite, {share:.1%} of the baseline's"
            )
    return None


def _shift(bounds: CanaryBounds, b: Sketch, c: Sketch) -> Verdict | None:
    if min(b.requests, c.requests) < bounds.min_requests:
        return None
    for canary, baseline in zip(c.every(), b.every()):
        if min(canary.count, baseline.count) < bounds.min_scores:
            continue
        shift = canary.shift(baseline)
        if shift > bounds.max_score_shift:
            return Verdict(
                "shift",
                f"scores have shifted by {shift:.2f}, limit {bounds.max_score_shift:g}: mean {canary.mean:.4g} "
                f"over {canary.count} scores, the baseline's {baseline.mean:.4g} over {baseline.count}",
            )
    return None
