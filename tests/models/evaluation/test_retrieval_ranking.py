"""Recall and NDCG of chosen items, beside a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.models.evaluation.retrieval_ranking import FURTHER, RetrievalRanking


def plain(users, items, targets, top):
    """Figures of events one by one; an item is behind all others of its score."""
    near = far = gain = 0.0
    for user, target in zip(users, targets):
        if target < 0:
            continue
        scores = [float(user @ item) for item in items]
        place = sum(score >= scores[target] for score in scores)
        near += place <= top
        far += place <= FURTHER
        gain += 1 / np.log2(place + 1) if place <= top else 0.0
    count = len(targets)
    return {f"recall@{top}": near / count, f"recall@{FURTHER}": far / count, f"ndcg@{top}": gain / count}


@given(st.integers(1, 150), st.integers(1, 20), st.integers(1, 12), st.integers(0, 1000))
def test_figures_are_those_of_a_plain_loop(count, events, top, seed):
    random = np.random.default_rng(seed)
    # Whole numbers, so that there are ties.
    users, items = (random.integers(-2, 3, (n, 3)).astype(np.float32) for n in (events, count))
    targets = random.integers(-1, count, events)
    ranking = RetrievalRanking(top)
    ranking.add(users[:3], items, targets[:3])
    if events > 3:
        ranking.add(users[3:], items, targets[3:])
    figures = ranking.figures()
    assert figures == pytest.approx(plain(users, items, targets, top))
    assert ranking.targets == events
    assert f"over {events:,} events, among {count:,} items" in ranking.told()


def test_nothing_to_rank_has_no_figures():
    assert np.isnan(list(RetrievalRanking(10).figures().values())).all()
