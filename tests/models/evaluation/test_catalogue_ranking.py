"""Ranks among all items: ties, seen items, and targets without a row."""

import math

import numpy as np

from freshet_serving.models.evaluation import catalogue_ranking
from freshet_serving.models.evaluation.catalogue_ranking import CatalogueRanking

ITEMS = np.array([[3.0], [2.0], [2.0], [1.0]], np.float32)
USER = np.ones((1, 1), np.float32)


def ranked(target, seen=(), top=10):
    ranking = CatalogueRanking(top)
    ranking.add(USER, ITEMS, np.array([target]), np.array(seen, np.int64), np.array([0, len(seen)]))
    return ranking.result()


def test_target_is_behind_items_of_its_score():
    assert ranked(1).ndcg == 1 / math.log2(4)
    assert ranked(2).ndcg == 1 / math.log2(4)
    assert ranked(0).ndcg == 1.0


def test_seen_items_are_no_candidates_but_the_target_is():
    assert ranked(3, seen=[0, 1]).ndcg == 1 / math.log2(3)
    assert ranked(3, seen=[0, 1, 2, 3, -1]).ndcg == 1.0


def test_target_beyond_the_places_or_without_a_row_is_missed():
    assert ranked(3, top=3) == ranked(-1, top=3)
    assert ranked(-1).hit_rate == 0.0
    assert ranked(-1).groups == 1


def test_many_targets_are_ranked_as_one_by_one(monkeypatch):
    monkeypatch.setattr(catalogue_ranking, "CHUNK_SCORES", 40)
    random = np.random.default_rng(0)
    users, items = (random.standard_normal((n, 3)).astype(np.float32) for n in (50, 20))
    targets, splits = random.integers(-1, 20, 50), np.arange(51) * 2
    seen = random.integers(-1, 20, 100)
    whole, hits = CatalogueRanking(5), 0
    whole.add(users, items, targets, seen, splits)
    for n, target in enumerate(targets):
        left = set(range(20)) - set(seen[2 * n : 2 * n + 2].tolist()) | {int(target)}
        scores = items @ users[n]
        hits += target >= 0 and sum(scores[i] >= scores[target] for i in left) <= 5
    assert whole.result().hit_rate == hits / 50


def test_no_targets_have_no_figures():
    assert math.isnan(CatalogueRanking(10).result().ndcg)
