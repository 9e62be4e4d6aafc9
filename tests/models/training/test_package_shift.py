"""A package is held against the weights that it was made of, over the newest rows alone."""

import math

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.data.source import Batch
from freshet_serving.models.training import package_shift as shifts
from freshet_serving.models.training.package_shift import REPORTED_SHIFT, compared, package_shift


def odds_times(scores, factor):
    odds = factor * scores / (1 - scores)
    return (odds / (1 + odds)).astype(np.float32)


@pytest.mark.parametrize("mean", [0.02, 0.2, 0.6])
def test_scores_a_tenth_too_high_are_beyond_the_bound(mean):
    trained = np.random.default_rng(1).beta(20 * mean, 20 * (1 - mean), 4000).astype(np.float32)
    assert package_shift(trained, odds_times(trained, 1.1)) == pytest.approx(math.log(1.1), abs=5e-3)


def test_errors_of_a_lower_precision_cancel():
    random = np.random.default_rng(2)
    trained = random.beta(2, 8, 4000).astype(np.float32)
    rounded = odds_times(trained, np.exp(random.normal(0, 0.05, 4000)))
    assert abs(package_shift(trained, rounded)) < REPORTED_SHIFT / 4


def test_newest_rows_are_compared_in_order(monkeypatch):
    monkeypatch.setattr(shifts, "COMPARED_ROWS", 5)
    batches = [Batch({"user": np.arange(n, n + 3)}, np.zeros(3, np.float32), None, n) for n in (0, 3, 6)]
    assert [batch.columns["user"].tolist() for batch in compared(batches)] == [[4, 5], [6, 7, 8]]
    assert compared([]) == []
