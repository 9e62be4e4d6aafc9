import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.load.openloop import poisson


def test_schedule_depends_only_on_rate_seconds_and_seed():
    assert np.array_equal(poisson(500, 3, seed=7), poisson(500, 3, seed=7))
    assert not np.array_equal(poisson(500, 3, seed=7)[:10], poisson(500, 3, seed=8)[:10])


@given(st.floats(1, 2000), st.floats(0.1, 5), st.integers(0, 1 << 32))
def test_arrivals_ascend_within_the_run(rate, seconds, seed):
    due = poisson(rate, seconds, seed)
    assert (np.diff(due) >= 0).all()
    assert ((due >= 0) & (due < seconds)).all()


def test_gaps_are_exponential_with_the_mean_of_the_rate():
    gaps = np.diff(poisson(2000, 100, seed=1))
    assert gaps.mean() == pytest.approx(1 / 2000, rel=0.02)
    # Of an exponential distribution the standard deviation is the mean; of a metronome it would be 0.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)
    assert (gaps > 2 * gaps.mean()).mean() == pytest.approx(np.exp(-2), rel=0.05)


@pytest.mark.parametrize(("rate", "seconds"), [(0, 1), (1, 0), (-1, 1)])
def test_zero_rate_or_duration_is_refused(rate, seconds):
    with pytest.raises(ValueError, match="rate and seconds"):
        poisson(rate, seconds, seed=0)
