"""When a delta is held, and when it is not."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.errors import BadInput
from processor.watching.delta_figures import Figure
from processor.watching.delta_guard import CEILINGS, HALF_LIFE, DeltaBounds, DeltaGuard, Usual, is_quiet

BOUNDS = DeltaBounds()
SCORES = ("bias", "spread", "disorder")
OTHERS = ("moved", "size", "removed", "dense")


def guard(usual=0.01, deltas=20):
    made = DeltaGuard()
    for _ in range(deltas):
        made.learn(figures(usual))
    return made


def figures(value, **other):
    found = [Figure(kind, "score", other.get(kind, value)) for kind in SCORES]
    return [*found, *(Figure(kind, "user", other.get(kind, value)) for kind in OTHERS)]


def test_what_is_usual_is_served():
    assert guard().judge(BOUNDS, figures(0.02)) is None


@pytest.mark.parametrize("kind", SCORES)
def test_a_figure_of_scores_beyond_its_floor_and_what_is_usual_is_held(kind):
    verdict = guard().judge(BOUNDS, figures(0.01, **{kind: 2.5}))
    assert verdict.kind == kind
    assert "is usual" in verdict.reason


def test_the_reason_names_figure_bound_and_what_is_usual():
    verdict = guard().judge(BOUNDS, figures(0.01, bias=0.1))
    assert verdict.reason == "the mean score of 'score' would move by 10.0%; at most 0.05 wanted, 0.0099 is usual"


@pytest.mark.parametrize("kind", OTHERS)
def test_rows_and_weights_that_have_moved_are_held_where_nobody_can_tell_what_they_score(kind):
    odd = [f for f in figures(0.01, **{kind: 5.0}) if f.kind not in SCORES]
    assert guard().judge(BOUNDS, odd).kind == kind


@pytest.mark.parametrize("kind", OTHERS)
def test_and_served_where_scores_are_as_before(kind):
    assert guard().judge(BOUNDS, figures(0.01, **{kind: 5.0})) is None


@pytest.mark.parametrize("kind", OTHERS)
def test_and_held_where_scores_have_moved_beyond_a_floor(kind):
    lively = guard(usual=0.04)
    assert lively.judge(BOUNDS, figures(0.04, bias=0.06)) is None
    assert lively.judge(BOUNDS, figures(0.04, bias=0.06, **{kind: 5.0})).kind == kind


def test_scores_that_are_no_numbers_are_held_from_the_first_delta_on():
    verdict = DeltaGuard().judge(BOUNDS, [Figure("nonfinite", "score", 0.01)])
    assert verdict.reason == "1.0% of the scores of 'score' would be no numbers; none wanted"


@pytest.mark.parametrize("kind", [kind for kind, ceiling in CEILINGS.items() if ceiling < math.inf])
def test_until_something_is_usual_only_what_no_delta_is_like_is_held(kind):
    fresh = guard(deltas=BOUNDS.learn - 1)
    assert fresh.judge(BOUNDS, [Figure(kind, "x", CEILINGS[kind])]) is None
    assert fresh.judge(BOUNDS, [Figure(kind, "x", CEILINGS[kind] * 1.01)]) is not None


@pytest.mark.parametrize("kind", ["moved", "dense"])
def test_young_rows_and_weights_may_move_by_any_share_of_their_length(kind):
    assert guard(deltas=BOUNDS.learn - 1).judge(BOUNDS, [Figure(kind, "x", 1e6)]) is None


def test_one_odd_delta_makes_nothing_usual():
    once = guard()
    once.learn(figures(0.3))
    assert once.judge(BOUNDS, figures(0.01, bias=0.1)) is not None
    once.learn(figures(0.3))
    assert once.judge(BOUNDS, figures(0.01, bias=0.1)) is None


def test_what_is_usual_fades():
    usual = Usual(1.0, 1.0, 10)
    for _ in range(HALF_LIFE):
        usual = usual.after(0.0)
    assert usual.second == pytest.approx(0.5)


@given(st.lists(st.floats(0.0, 0.049), max_size=60))
def test_below_every_floor_nothing_is_ever_held(values):
    any_stream = DeltaGuard()
    for value in values:
        assert any_stream.judge(BOUNDS, figures(value)) is None
        any_stream.learn(figures(value))


@given(st.floats(0.001, 0.3), st.lists(st.floats(1.0, 2.5), max_size=200))
def test_a_stream_whose_deltas_are_alike_is_never_held(scale, times):
    stream = DeltaGuard()
    for value in times:
        assert stream.judge(BOUNDS, figures(scale * value)) is None
        stream.learn(figures(scale * value))


@pytest.mark.parametrize("scale", [0.005, 0.02, 0.1])
def test_a_good_stream_whose_figures_have_long_tails_is_not_held(scale):
    """Log-normal: of 4,000 deltas the largest moves scores five times as far as most."""
    random, stream = np.random.default_rng(5), DeltaGuard()
    for value in (scale * np.exp(0.4 * random.standard_normal(4000))).tolist():
        assert stream.judge(BOUNDS, figures(value)) is None
        stream.learn(figures(value))


def worked(events, rows):
    made = DeltaGuard()
    for _ in range(20):
        made.learn(figures(0.01), events, rows)
    return made


def test_a_delta_of_many_events_may_move_things_as_many_times_as_far():
    usual = worked(1000, 500)
    assert usual.judge(BOUNDS, figures(0.01, bias=0.3), 1000, 500).kind == "bias"
    assert usual.judge(BOUNDS, figures(0.01, bias=0.3), 10_000, 500) is None
    assert usual.judge(BOUNDS, figures(0.01, bias=1.1), 100_000, 500).kind == "bias"


def test_rows_are_no_excuse_where_events_are_told():
    assert worked(1000, 500).judge(BOUNDS, figures(0.01, bias=0.3), 1000, 500_000).kind == "bias"


def test_rows_count_by_their_root_where_no_delta_tells_of_events():
    usual = worked(0, 500)
    assert usual.judge(BOUNDS, figures(0.01, bias=0.3), 0, 50_000) is None
    assert usual.judge(BOUNDS, figures(0.01, bias=0.3), 0, 2500).kind == "bias"


def test_it_is_quiet_where_the_scores_are_known_to_stay():
    assert is_quiet(BOUNDS, figures(0.01, moved=3.0))
    assert not is_quiet(BOUNDS, figures(0.01, bias=0.06))
    assert not is_quiet(BOUNDS, [Figure("moved", "user", 0.0)])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "model.ctr.delta_guard: a section wanted, got a list"),
        ({"max_bias": 1}, "model.ctr.delta_guard: unknown key 'max_bias'; known: mode, bias"),
        ({"mode": "loud"}, "model.ctr.delta_guard.mode: off, on, strict wanted, got 'loud'"),
        ({"bias": -0.1}, "model.ctr.delta_guard.bias: 0 to 1e"),
        ({"learn": 2.5}, "model.ctr.delta_guard.learn: 1 to 100000 wanted, got '2.5'"),
        ({"factor": 0.5}, "model.ctr.delta_guard.factor: 1 to"),
    ],
)
def test_bounds_that_are_none_are_refused_in_one_line(raw, message):
    with pytest.raises(BadInput) as refused:
        DeltaBounds.parse(raw, "model.ctr.delta_guard")
    assert str(refused.value).startswith(message)


def test_bounds_are_read_with_their_defaults():
    parsed = DeltaBounds.parse({"mode": "strict", "bias": 1, "learn": 20}, "x")
    assert parsed == dataclasses.replace(BOUNDS, mode="strict", bias=1.0, learn=20)
