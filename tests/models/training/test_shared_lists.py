"""Long lists that rows share are looked up, pooled and moved once, with the results of a list in each row."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training import shared_lists
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged, Strings
from tests.models.training.streams import FEATURES, make_batch, make_config, spread

pytestmark = pytest.mark.tensorflow

ROWS, LENGTH = 300, 7
RUNS = np.repeat(np.arange(ROWS), [150, 1, 99, 50, *[0] * (ROWS - 4)])


def lists(make):
    """Lists of a batch: runs of rows that share one, across the parts that cores compute."""
    values = [make(np.arange(LENGTH) * (run + 1) % 11) for run in range(4)]
    splits = np.arange(ROWS + 1) * LENGTH
    flat = [value for run in RUNS for value in values[run]]
    return Ragged(Strings.of(flat) if isinstance(flat[0], str) else np.array(flat), splits)


def batch(seed=0):
    made = make_batch(ROWS, seed)
    shared = {"history": lists(spread), "words": lists(lambda run: [f"tag {n}" for n in run])}
    return replace(made, columns=made.columns | shared)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    features = [replace(f, max_length=3) if f.name == "words" else f for f in FEATURES]
    config = make_config(tmp_path_factory.mktemp("repository"), features)
    return [Trainer(draft(config, {}), config.train, config.network) for _ in range(2)]


def test_shared_lists_score_and_train_as_repeated_ones(pair, monkeypatch):
    once, each = pair
    monkeypatch.setattr(shared_lists, "LEAST_LENGTH", 1)
    for number in range(3):
        monkeypatch.setattr(shared_lists, "LEAST_VALUES", 1)
        work = once.transform(batch(number))
        monkeypatch.setattr(shared_lists, "LEAST_VALUES", 1 << 40)
        plain = each.transform(batch(number))
        assert (set(work.firsts), set(plain.firsts)) == ({"history", "words"}, set())
        assert plain.bound.ids - work.bound.ids == 2 * (ROWS - 4) * LENGTH
        assert np.allclose(once.score(work), each.score(plain), atol=1e-6)
        assert np.allclose(once.dense_inputs(work)["x"], each.dense_inputs(plain)["x"], atol=1e-6)
        assert once.learn(work) == pytest.approx(each.learn(plain), rel=1e-5)
    for name, table in each.tables.items():
        wanted, found = table.export(), once.tables[name].export()
        assert np.array_equal(found.keys, wanted.keys)
        assert np.array_equal(found.counts, wanted.counts)
        assert np.allclose(found.rows, wanted.rows, atol=1e-5)


def test_short_or_different_lists_are_left_alone(pair, monkeypatch):
    trainer, _ = pair
    assert trainer.transform(batch()).firsts == {}
    monkeypatch.setattr(shared_lists, "LEAST_VALUES", 1)
    monkeypatch.setattr(shared_lists, "LEAST_LENGTH", 0)
    assert trainer.transform(make_batch(ROWS)).firsts == {}


def test_table_that_counts_occurrences_sees_each(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_lists, "LEAST_VALUES", 1)
    monkeypatch.setattr(shared_lists, "LEAST_LENGTH", 1)
    config = make_config(tmp_path)
    tables = {"item": TableConfig(admit_after=2)}
    trainer = Trainer(draft(config, {}), config.train, config.network, tables=tables)
    work = trainer.transform(batch())
    assert set(work.firsts) == {"words"}
    assert isinstance(work.batch, Batch)
