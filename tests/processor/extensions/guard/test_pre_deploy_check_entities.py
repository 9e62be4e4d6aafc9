"""Deltas of features are judged by what they do to scores, like deltas of rows and weights."""

import time

import numpy as np
import pytest

from freshet_serving.models.publishing.entity_rows import entity_rows
from freshet_serving.processor.package.delta import Delta, TableDelta
from tests.processor.extensions.guard.fed import drop, opened, served
from tests.support import entities

GOOD, KEYS = 12, list(entities.KNOWN)
MODEL = entities.manifest()


def features(step, change):
    """A delta with the features of all users, their floats changed."""
    columns = entities.columns(KEYS)
    columns["floats"] = change(columns["floats"]).astype(np.float32)
    records = entity_rows(MODEL, entities.ENTITY, columns, len(KEYS))
    table = TableDelta(np.array(KEYS), records, np.empty(0, np.int64))
    return Delta("small", 1, step, step - 1, {entities.TABLE: table}, {}, published_at=time.time())


@pytest.fixture
def model(tmp_path):
    """A model that is asked for keys alone, after good deltas of features."""
    entities.write_package(tmp_path)
    made = opened(tmp_path, asked=False)
    replica, random = made.pick().replicas, np.random.default_rng(0)
    for _ in range(40):
        replica.sample.take(replica.plan.bind_inputs({"user": random.choice(KEYS, 8)}))
    for step in range(1, GOOD + 1):
        drop(tmp_path, features(step, lambda floats: floats + 0.001 * random.normal(size=floats.shape)))
        made.poll()
    assert served(made) == f"1.{GOOD}"
    return made


@pytest.mark.parametrize(
    "fault",
    [lambda floats: floats * 0 + 30.0, lambda floats: np.full_like(floats, np.nan), lambda floats: floats[::-1] * 5],
    ids=["constant", "missing", "another item's"],
)
def test_features_that_move_scores_are_held(tmp_path, model, fault):
    drop(tmp_path, features(GOOD + 1, fault))
    model.poll()
    assert served(model) == f"1.{GOOD}"
    assert model.chain(1).state == "HELD"


def test_good_features_are_served(tmp_path, model):
    drop(tmp_path, features(GOOD + 1, lambda floats: floats + 0.001))
    model.poll()
    assert served(model) == f"1.{GOOD + 1}"
