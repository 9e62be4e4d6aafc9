"""The share of late positives as it is estimated, and weights whose expectation is the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.streams.late_share import LateShare
from freshet_serving.processor.errors import Corrupt


def fed(share, rng, until_s, delay, p=0.2, rate=50, wait_s=60.0, late_s=2400.0):
    """Rows of p until until_s, with what has come by then; the true share of positives that come late."""
    times = np.arange(0, until_s, 1 / rate)
    positive = rng.random(len(times)) < p
    delays = delay(len(times))
    in_time = positive & (delays <= wait_s)
    left = times + wait_s <= until_s
    share.add_rows(times[left], np.full(left.sum(), p), in_time[left].astype(float))
    late = positive & (delays > wait_s) & (delays <= late_s) & (times + delays <= until_s)
    share.add_late(times[late], delays[late], np.ones(late.sum()))
    made = delay(10**6)
    return ((made > wait_s) & (made <= late_s)).sum() / (made <= late_s).sum()


SHAPES = {
    "exponential": lambda rng: lambda n: rng.exponential(100, n),
    "heavy tail": lambda rng: lambda n: 20 * (1 + rng.pareto(1.0, n)),
    "half late": lambda rng: lambda n: np.where(rng.random(n) < 0.5, 10, 300 + 100 * rng.random(n)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_late_share_matches_the_delays(shape):
    rng = np.random.default_rng(3)
    share = LateShare(60.0, 2400.0)
    true = fed(share, rng, 9000.0, SHAPES[shape](rng))
    assert share.share(9000.0) == pytest.approx(true, abs=0.02)
    assert share.off(share.share(9000.0)) == pytest.approx(1.0, abs=0.05)


def test_young_rows_do_not_bias_the_late_share():
    """What is known after a while is right as far as delays have had time."""
    rng = np.random.default_rng(4)
    share = LateShare(60.0, 2400.0)
    true = fed(share, rng, 1500.0, SHAPES["half late"](rng))
    assert share.share(1500.0) == pytest.approx(true, abs=0.05)


def test_score_bias_is_corrected():
    share = LateShare(60.0, 600.0)
    share.add_rows(np.arange(20000.0), np.full(20000, 0.4), np.tile([1.0, 0, 0, 0, 0], 4000))
    assert share.off(0.0) == pytest.approx(0.5)


@given(p=st.floats(0, 0.99), q=st.floats(0.01, 0.99))
def test_expected_weight_equals_the_true_probability(p, q):
    share = LateShare(10.0, 100.0)
    share.share = lambda until_s: q
    (weight,) = share.weights(np.array([p]), 0.0)
    in_time = (1 - q) * p
    assert in_time + q * p == pytest.approx(p)
    assert (1 - in_time) * weight == pytest.approx(1 - p)


def test_rows_without_corrections_have_weight_one():
    share = LateShare(10.0, 0.0)
    share.add_rows(np.zeros(3), np.ones(3), np.ones(3))
    assert share.share(1e9) == 0
    assert share.weights(np.array([0.0, 1.0, 7.0]), 1e9).tolist() == [1, 1, 1]
    assert share.to_json() == {}


def test_late_share_continues_from_saved_state_and_forgets_old_rows():
    rng = np.random.default_rng(5)
    share = LateShare(60.0, 2400.0)
    fed(share, rng, 9000.0, SHAPES["exponential"](rng))
    again = LateShare(60.0, 2400.0, share.to_json())
    assert again.share(9000.0) == pytest.approx(share.share(9000.0))
    share.forget(9000.0)
    assert len(share.to_json()) < len(again.to_json())
    assert again.share(9000.0) == pytest.approx(share.share(9000.0), abs=0.02)


@pytest.mark.parametrize("said", [[1], {"x": [1.0]}, {"0": [1.0]}, {"0": [["a"]]}, {"0": None}])
def test_invalid_cohorts_are_refused(said):
    with pytest.raises(Corrupt, match="late share"):
        LateShare(60.0, 2400.0, said)
