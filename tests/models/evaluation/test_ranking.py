"""Hit rate and NDCG against a plain ranking of each group, ties pessimistic."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.evaluation.ranking import ranking
from freshet_serving.models.evaluation.slices import GroupedAuc
from freshet_serving.models.evaluation.tally import ScoreTally

rows_of_groups = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from([0.1, 0.25, 0.5, 0.9])), min_size=1, max_size=60
)


def by_hand(rows, k):
    """(hit rate, NDCG) as a reader of the definition would compute them."""
    hits, gains = [], []
    for group in {group for group, _, _ in rows}:
        own = sorted(((-score, label) for g, label, score in rows if g == group))
        labels = [label for _, label in own]
        if not any(labels):
            continue
        gain = sum(1 / math.log2(place + 2) for place, label in enumerate(labels[:k]) if label)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, sum(labels))))
        hits.append(any(labels[:k]))
        gains.append(gain / best)
    return (np.mean(hits), np.mean(gains), len(hits)) if hits else (math.nan, math.nan, 0)


@given(rows_of_groups, st.integers(1, 12))
def test_figures_equal_those_of_a_plain_ranking(rows, k):
    grouped = GroupedAuc()
    keys, labels, scores = (np.array(column) for column in zip(*rows))
    grouped.add(keys.astype(np.int64), labels.astype(np.float32), scores.astype(np.float32))
    found = grouped.ranking(k)
    assert (found.hit_rate, found.ndcg, found.groups) == pytest.approx(by_hand(rows, k), nan_ok=True)


def test_ties_count_against_the_model():
    tally = ScoreTally()
    tally.add(np.float32([1, 0, 0]), np.full(3, 0.5, np.float32))
    assert ranking(tally.counts(), 2).hit_rate == 0.0
    assert ranking(tally.counts(), 3).ndcg == pytest.approx(0.5)


def test_weighted_rows_have_no_ranking():
    tally = ScoreTally()
    tally.add(np.float32([1, 0]), np.float32([0.6, 0.5]), np.float32([2, 1]))
    assert math.isnan(ranking(tally.counts(), 1).ndcg)
