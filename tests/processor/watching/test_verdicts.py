"""Bounds of a canary, and what is weighed against what."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.watching import CanaryBounds, Sketch, StatsBlock
from freshet_serving.processor.watching.verdicts import weigh


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "guard: expected a section, got a list"),
        ({"max_errors": 1}, "guard: unknown key 'max_errors'; known: window_s"),
        ({"max_error_share": 1.5}, "guard.max_error_share: expected 0 to 1, got '1.5'"),
        ({"min_requests": 2.5}, "guard.min_requests: expected 1 to 1e"),
        ({"window_s": 0}, "guard.window_s: expected 1 to"),
    ],
)
def test_invalid_bounds_are_refused(raw, words):
    with pytest.raises(BadInput, match=words):
        CanaryBounds.parse(raw, "guard")


def test_bounds_are_parsed():
    assert CanaryBounds.parse({"window_s": 10, "max_error_share": 1}, "guard") == CanaryBounds(
        10.0, max_error_share=1.0
    )


def served(scores, failed=0):
    """The sketch of a version that gave these scores, one a request."""
    block = StatsBlock(1)
    block.note(0, np.asarray(scores, np.float32).reshape(-1, 1))
    block.done(len(scores), rows=len(scores))
    block.fail(failed)
    return Sketch.total(1, [block])


def test_shift_is_ignored_while_traffic_moves():
    bounds = CanaryBounds(min_requests=100, min_scores=100)
    before, now = served(np.full(200, 0.1)), served(np.full(200, 0.9))
    assert weigh(bounds, before, now).kind == "shift"
    assert weigh(bounds, before, now, traffic=True) is None
    assert weigh(bounds, before, served(np.full(200, 0.9), failed=100), traffic=True).kind == "errors"
