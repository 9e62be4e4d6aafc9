import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.evaluation.calibration import deciles, expected_calibration_error
from freshet_serving.models.evaluation.tally import ScoreTally


def counts(labels, scores, weights=None):
    tally = ScoreTally()
    tally.add(np.array(labels, np.float32), np.array(scores, np.float32), weights)
    return tally.counts()


def test_deciles_of_different_scores_are_tenths_with_own_means():
    scores = np.arange(100) / 100
    labels = np.arange(100) % 4 == 0
    parts = deciles(counts(labels, scores))
    assert [part.rows for part in parts] == [10] * 10
    for n, part in enumerate(parts):
        own = slice(10 * n, 10 * n + 10)
        assert part.predicted == pytest.approx(scores[own].mean(), abs=1e-6)
        assert part.observed == pytest.approx(labels[own].mean())
        assert (part.low, part.high) == pytest.approx((scores[own][0], scores[own][-1]))
    error = sum(abs(p.predicted - p.observed) for p in parts) / 10
    assert expected_calibration_error(parts) == pytest.approx(error)


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.125, 0.5, 1.0]), st.sampled_from([0.0, 1.0, 2.5])),
        min_size=1,
        max_size=50,
    )
)
def test_rows_with_equal_scores_stay_in_one_decile(drawn):
    labels, scores, weights = (np.array(column, np.float32) for column in zip(*drawn))
    parts = deciles(counts(labels, scores, weights))
    assert len(parts) == len({s for _, s, w in drawn if w}) or len(parts) <= 4
    assert sum(part.weight for part in parts) == pytest.approx(weights.sum())
    assert all(a.high < b.low for a, b in zip(parts, parts[1:]))
    observed = sum(part.weight * part.observed for part in parts)
    assert observed == pytest.approx((weights * labels).sum(), abs=1e-6)


def test_empty_input_has_no_deciles():
    assert deciles(ScoreTally().counts()) == []
    assert math.isnan(expected_calibration_error([]))
