"""Made-up logs are what their kind says: in order, the same for a seed, and no easier than their probabilities."""

import numpy as np
import pytest

from freshet_serving.compiler.building.auc import auc
from loadtest.bench.event_logs import KINDS, LAST_TWO, event_log

ROWS = 5000


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_log_is_in_order_and_its_seed_draws_it(kind):
    log, again, other = (event_log(kind, seed, ROWS) for seed in (1, 1, 2))
    columns = log.columns
    assert (np.diff(columns["time"]) >= 0).all()
    assert all((columns[name] == again.columns[name]).all() for name in columns)
    assert (columns["item_id"] != other.columns["item_id"]).any()
    assert 0.7 < auc(columns["label"], log.chances.astype(np.float32)) < 0.85
    of_item = dict(zip(columns["item_id"].tolist(), columns["category"].tolist()))
    assert [of_item[item] for item in columns["item_id"].tolist()] == columns["category"].tolist()


def test_items_that_follow_the_last_liked_one_are_liked_more():
    columns = event_log(LAST_TWO, 3, ROWS).columns
    last, liked = {}, {}
    pairs = [[], []]
    for user, item, label in zip(*(columns[name].tolist() for name in ("user_id", "item_id", "label"))):
        if user in last:
            pair = last[user], item
            pairs[int(liked.get(pair, 0) > 1)].append(label)
            liked[pair] = liked.get(pair, 0) + label
        if label:
            last[user] = item
    assert np.mean(pairs[1]) > np.mean(pairs[0]) + 0.1
