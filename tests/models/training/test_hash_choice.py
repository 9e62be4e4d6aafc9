import math

import numpy as np
import pytest

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training import hash_choice
from freshet_serving.models.training.hash_choice import decided, estimated_ids, measured, of_version, undecided
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Ragged, Strings


def config(crosses=None, **tables):
    return parse_config(
        {
            "model": {"name": "ctr"},
            "data": {"path": "clicks.csv", "label": "clicked"},
            "features": {
                "user": {"kind": "id"},
                "word": {"kind": "string"},
                "seen": {"kind": "ids", "table": "user"},
                "user.keys": {"kind": "float"},
            }
            | (crosses or {}),
            "train": {"optimizer": "adagrad"},
            "tables": tables,
        }
    )


class Ids:
    """A stream whose row i has user ids[i], and some seen before."""

    def __init__(self, ids, endless=False):
        self._ids, self._endless = np.asarray(ids, np.int64), endless

    def count_rows(self):
        return None if self._endless else len(self._ids)

    def batches(self, rows, start=0):
        for first in range(start, len(self._ids), rows):
            ids = self._ids[first : first + rows]
            columns = {
                "user": ids,
                "word": Strings.of(["a"] * len(ids)),
                "seen": Ragged(np.repeat(ids, 2), np.arange(len(ids) + 1) * 2),
                "user.keys": np.zeros(len(ids), np.float32),
            }
            yield Batch(columns, np.zeros(len(ids), np.float32), None, first)


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    monkeypatch.setattr(hash_choice, "COUNTED_ROWS", 1000)
    monkeypatch.setattr(hash_choice, "COUNTED_AT_ONCE", 100)


def test_each_bucket_of_a_cross_may_be_an_id():
    crossed = config({"pair": {"cross": ["user", "word"], "buckets": 5000}})
    assert estimated_ids(Ids(np.arange(700) % 300), crossed, ["user", "pair"]) == {"user": 300, "pair": 5000}


def test_ids_of_fully_read_data_are_counted():
    found = estimated_ids(Ids(np.arange(700) % 300), config(), ["user", "word"])
    assert found == {"user": 300, "word": 1}


def test_ids_of_longer_data_are_estimated_by_their_growth():
    assert estimated_ids(Ids(np.arange(50_000)), config(), ["user"])["user"] == pytest.approx(50_000)
    assert estimated_ids(Ids(np.arange(50_000) % 200), config(), ["user"])["user"] == 200
    ids = np.random.default_rng(0).zipf(1.5, 50_000)
    found = estimated_ids(Ids(ids), config(), ["user"])["user"]
    assert 0.5 < found / len(np.unique(ids)) < 2


def test_endless_data_has_unlimited_ids_unless_none_are_new():
    assert estimated_ids(Ids(np.arange(5000), endless=True), config(), ["user"])["user"] == math.inf
    assert estimated_ids(Ids(np.arange(5000) % 7, endless=True), config(), ["user"])["user"] == 7
    assert estimated_ids(Ids([], endless=True), config(), ["user"])["user"] == 0


def test_only_tables_with_rows_and_no_method_are_decided():
    none = config(user={"admit_after": 2}, word={"hash": "k_way", "hash_rows": 10})
    assert undecided(none) == []
    assert measured(Ids([1, 2]), none) == ({}, "")
    assert decided(none, {}) == none.tables
    some = config(user={"hash_rows": 4}, word={"hash_rows": 4})
    assert measured(Ids(range(100)), some) == (
        {"user": "binary_code", "word": "none"},
        "defaults: hash of user binary_code (100 ids, 4 rows); word none (1 ids, 4 rows)",
    )
    assert decided(some, {"user": "k_way"}) == {
        "user": TableConfig(hash="k_way", hash_rows=4),
        "word": TableConfig(hash="none", hash_rows=4),
    }


def test_manifest_records_how_tables_are_hashed():
    made = draft(config(user={"hash": "k_way", "hash_rows": 10}), {})
    assert of_version(made) == {"user": "k_way", "word": "none"}
    assert [(t.name, t.op, t.inputs, t.integers) for t in made.transforms] == [
        ("user.keys_", "k_way", ["user"], [0, 5, 2]),
        ("seen.keys", "k_way", ["seen"], [0, 5, 2]),
    ]
    assert [(f.name, f.kind, f.input) for f in made.features] == [
        ("user", "ids", "user.keys_"),
        ("word", "string", "word"),
        ("seen", "ids", "seen.keys"),
        ("user.keys", "float", "user.keys"),
    ]
