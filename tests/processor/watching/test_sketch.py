"""Histograms that sessions write and everybody adds up: what they say about scores and times."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.kernels.counting import time_bin
from freshet_serving.processor.watching.sketch import ROW_BOUNDS, TIME_BOUNDS_S, Scores, Sketch, StatsBlock
from tests.support.counters import note_scores

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


def note(block, rows=1, requests=1, scores=(0.5,), queue_s=0.0, sparse_s=0.0, dense_s=0.0, padded=0):
    note_scores(block, scores, requests, rows, padded, queue_s, sparse_s, dense_s)


@given(st.lists(floats, max_size=50))
def test_every_score_is_counted_once_and_finite_ones_summed(values):
    array = np.array(values, np.float32)
    scores = Scores.of(array)
    finite = array[np.isfinite(array)]
    assert (scores.count, scores.lost) == (len(finite), len(array) - len(finite))
    assert scores.total == pytest.approx(float(finite.astype(np.float64).sum()), rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-3000, 3000, width=32), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_lies_in_the_bin_of_its_score(values, share):
    array = np.sort(np.array(values, np.float32))
    found = Scores.of(array).quantile(share)
    low, high = (float(np.quantile(array, share, method=m)) for m in ("lower", "higher"))
    room = max(abs(low), abs(high)) / 8 + 2.0**-19
    assert low - room <= found <= high + room


def test_quantiles_of_many_scores_are_close():
    array = np.random.default_rng(0).beta(1, 20, 100_000).astype(np.float32)
    scores = Scores.of(array)
    assert scores.mean == pytest.approx(float(array.mean()), rel=1e-5)
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert scores.quantile(share) == pytest.approx(float(np.quantile(array, share)), rel=0.02)
    assert math.isnan(Scores.of(np.empty(0, np.float32)).quantile(0.5))
    assert math.isnan(Scores.of(np.empty(0, np.float32)).mean)


def test_shift_distinguishes_different_scores_from_equal_ones():
    random = np.random.default_rng(1)
    base = Scores.of(random.beta(1, 20, 20_000))
    assert base.shift(base) == 0
    assert base.shift(Scores.of(random.beta(1, 20, 2000))) < 0.05
    assert base.shift(Scores.of(random.beta(2, 20, 2000))) > 0.25
    assert base.shift(Scores.of(-random.beta(1, 20, 2000))) > 1
    assert Scores.of(np.full(1000, 0.5)).shift(Scores.of(np.full(1000, 0.9))) > 1
    assert base.shift(Scores.of(np.empty(0))) == 0


@given(st.floats(0, 1e9))
def test_time_lies_between_the_bounds_of_its_bin(seconds):
    k = time_bin(seconds)
    assert (TIME_BOUNDS_S[k - 1] if k else 0) <= seconds
    assert k == len(TIME_BOUNDS_S) or seconds < TIME_BOUNDS_S[k]


def test_batch_is_recorded_with_its_stages_and_size():
    block = StatsBlock(1)
    note(block, rows=5, requests=3, scores=[0.1] * 5, queue_s=0.001, sparse_s=0.01, dense_s=0.1, padded=3)
    note(block, rows=1, requests=1, queue_s=0.003)
    block.fail(2)
    sketch = Sketch.total(1, [block])
    assert (sketch.requests, sketch.rows, sketch.padded, sketch.failed) == (4, 6, 3, 2)
    counts, total_s = sketch.phase("queue")
    assert counts.sum() == 4
    assert total_s == pytest.approx(0.006)
    assert sketch.phase("sparse")[0].sum() == sketch.phase("dense")[0].sum() == 2
    assert sketch.phase("dense")[1] == pytest.approx(0.1)
    assert sketch.sizes[0] == 1
    assert sketch.sizes[ROW_BOUNDS.index(8)] == 1
    assert sketch.scores(0).count == 6


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 255, 256, 257, 4096, 100_000])
def test_batch_is_counted_in_the_bin_of_its_size(rows):
    block = StatsBlock(1)
    note(block, rows=rows)
    (at,) = np.flatnonzero(Sketch.total(1, [block]).sizes)
    assert at == len(ROW_BOUNDS) or rows <= ROW_BOUNDS[at]
    assert at == 0 or rows > ROW_BOUNDS[at - 1]


def test_sketches_add_subtract_and_serialise():
    blocks = [StatsBlock(2) for _ in range(3)]
    for n, block in enumerate(blocks):
        for _ in range(n + 1):
            note(block, scores=[0.25, -3.0, np.nan])
    whole = Sketch.total(2, blocks)
    first = Sketch.total(2, blocks[:1])
    assert whole.since(first).requests == 5
    assert first.since(whole) is None, "counted anew"
    assert (whole.since(first) + first).scores(0).total == pytest.approx(whole.scores(0).total)
    again = Sketch.from_json(2, json.loads(json.dumps(whole.to_json())))
    np.testing.assert_array_equal(again.counts, whole.counts)
    np.testing.assert_array_equal(again.sums, whole.sums)
    assert Sketch.from_json(2, None).requests == 0
    assert [scores.lost for scores in whole.every()] == [6, 0]
