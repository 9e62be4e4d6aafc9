"""When a canary is taken out, and when it is not."""

import numpy as np
import pytest

from freshet_serving.processor.extensions.trials.canary_judge import CanaryEvidence, CanaryJudge
from freshet_serving.processor.watching import CanaryBounds, Sketch, StatsBlock
from tests.support.counters import note_scores

BOUNDS = CanaryBounds(window_s=60, min_requests=100, min_scores=100)
RANDOM = np.random.default_rng(3)


class Side:
    """A version that answers requests."""

    def __init__(self):
        self.block = StatsBlock(1)

    def serve(self, requests=100, failed=0, scores=None):
        note_scores(self.block, RANDOM.beta(2, 20, requests * 4) if scores is None else scores, requests)
        self.block.fail(failed)
        return self

    @property
    def sketch(self):
        return Sketch.total(1, [self.block])


@pytest.fixture
def sides():
    """A judge that has begun, a baseline and a canary that have answered nothing since."""
    judge, baseline, canary = CanaryJudge(), Side().serve(5000), Side().serve(5000)
    assert judge.look(BOUNDS, 0.0, baseline.sketch, canary.sketch) is None
    return judge, baseline, canary


def look(judge, baseline, canary, now_s=1.0, bounds=BOUNDS):
    return judge.look(bounds, now_s, baseline.sketch, canary.sketch)


def test_canary_like_the_baseline_stays(sides):
    judge, baseline, canary = sides
    for second in range(1, 200):
        baseline.serve(100)
        canary.serve(50)
        assert look(judge, baseline, canary, second) is None


def test_verdict_names_failures_beyond_the_limit(sides):
    judge, baseline, canary = sides
    verdict = look(judge, baseline.serve(1000), canary.serve(200, failed=10))
    assert verdict is not None
    assert verdict.kind == "errors"
    assert verdict.reason == "10 of 210 requests failed; limit 2.0% more than the baseline's 0.0%"


def test_failures_shared_with_the_baseline_do_not_count(sides):
    judge, baseline, canary = sides
    assert look(judge, baseline.serve(1000, failed=100), canary.serve(200, failed=10)) is None


def test_unrecoverable_canary_is_judged_before_the_window_ends(sides):
    judge, baseline, canary = sides
    assert look(judge, baseline, canary.serve(0, failed=2, scores=[])) is None
    assert look(judge, baseline, canary.serve(0, failed=1, scores=[])).kind == "errors"


def test_one_non_finite_score_suffices(sides):
    judge, baseline, canary = sides
    verdict = look(judge, baseline.serve(100), canary.serve(1, scores=[0.1, np.nan]))
    assert verdict.kind == "nonfinite"
    assert verdict.reason == "1 of 2 scores are NaN or infinite, 0.0% of the baseline's"


def test_shifted_scores_are_named_once_both_sides_have_enough(sides):
    judge, baseline, canary = sides
    wrong = RANDOM.beta(8, 20, 396)
    assert look(judge, baseline.serve(1000), canary.serve(99, scores=wrong)) is None
    verdict = look(judge, baseline, canary.serve(1, scores=wrong[:4]))
    assert verdict.kind == "shift"
    assert "over 400 scores" in verdict.reason


def test_old_failures_are_forgotten_when_a_full_window_closes(sides):
    judge, baseline, canary = sides
    lenient = CanaryBounds(60, 100, 100, max_error_share=0.05)
    assert look(judge, baseline.serve(100), canary.serve(100, failed=5), 61.0, lenient) is None
    assert look(judge, baseline.serve(100), canary.serve(100, failed=4), 62.0, lenient) is None
    assert look(judge, baseline.serve(0, scores=[]), canary.serve(0, failed=3, scores=[]), 63.0, lenient) is not None


def test_window_continues_until_it_is_full_under_little_traffic(sides):
    judge, baseline, canary = sides
    verdicts = [
        look(judge, baseline.serve(100), canary.serve(10, scores=np.full(40, 0.9)), 100.0 * n) for n in range(1, 11)
    ]
    assert verdicts[:-1] == [None] * 9
    assert verdicts[-1].kind == "shift"


def test_counter_reset_is_not_a_verdict(sides):
    judge, baseline, _ = sides
    assert look(judge, baseline.serve(100), Side().serve(10)) is None


@pytest.mark.parametrize("anew", [("canary",), ("baseline",), ("baseline", "canary")])
def test_counter_reset_is_detected_even_when_counts_are_higher(sides, anew):
    judge, *there = sides
    now = dict(zip(("baseline", "canary"), there)) | {name: Side() for name in anew}
    for side in now.values():
        side.serve(6000, scores=RANDOM.beta(20, 2, 24_000))
    assert look(judge, now["baseline"], now["canary"]) is None
    for side in now.values():
        side.serve(200, scores=np.full(800, 0.5))
    assert look(judge, now["baseline"], now["canary"]) is None, "what there was before is no part of it"


def test_non_finite_share_is_of_all_canary_scores(sides):
    judge, baseline, canary = sides
    lenient = CanaryBounds(60, 100, 100, max_nonfinite_share=0.01)
    canary.block.done(1000, rows=4000)
    canary.block.lose(0, 40)
    assert look(judge, baseline.serve(1), canary, bounds=lenient) is None
    canary.block.lose(0, 1)
    verdict = look(judge, baseline, canary, bounds=lenient)
    assert verdict.reason == "41 of 4000 scores are NaN or infinite, 0.0% of the baseline's"


def test_counter_reset_of_the_baseline_starts_a_window(sides):
    judge, _, canary = sides
    baseline = Side().serve(10)
    assert look(judge, baseline, canary.serve(10)) is None
    verdict = look(judge, baseline.serve(1000), canary.serve(100, scores=RANDOM.beta(8, 20, 400)))
    assert verdict.kind == "shift"


def test_canary_without_requests_gets_no_verdict():
    judge, none = CanaryJudge(), CanaryEvidence.none(2)
    assert none.canary.requests == none.baseline.requests == 0
    for now_s in (0.0, 61.0):
        assert judge.look(BOUNDS, now_s, none.baseline, none.canary) is None
