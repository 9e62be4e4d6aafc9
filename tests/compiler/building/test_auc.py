import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.compiler.building.auc import auc

labelled = st.lists(
    st.tuples(st.booleans(), st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))),
    min_size=1,
    max_size=40,
)


def arrays(rows):
    return np.array([a for a, _ in rows], np.float32), np.array([b for _, b in rows], np.float32)


@given(labelled)
def test_auc_is_the_share_of_correctly_ordered_pairs(rows):
    labels, scores = arrays(rows)
    pairs = [(p > n) + (p == n) / 2 for p in scores[labels > 0.5] for n in scores[labels < 0.5]]
    if pairs:
        assert auc(labels, scores) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    else:
        assert math.isnan(auc(labels, scores))


def test_auc_is_right_for_perfect_inverted_and_random_scores():
    labels = np.array([0, 0, 1, 1], np.float32)
    assert auc(labels, np.array([0.1, 0.2, 0.3, 0.4], np.float32)) == 1
    assert auc(labels, np.array([0.4, 0.3, 0.2, 0.1], np.float32)) == 0
    assert auc(labels, np.full(4, 0.7, np.float32)) == 0.5
