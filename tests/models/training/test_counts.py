"""Counts in training: each row adds itself to what it has read, once, whatever rates, weights and clipping."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged

pytestmark = pytest.mark.tensorflow

ROWS, BATCH = 96, 32


def config_of(train=None):
    return parse_config({
        "model": {"name": "m", "arch": "deepfm", "hidden": [4]},
        "data": {"path": "x.parquet", "format": "parquet", "label": "y", "time": "ts"},
        "features": {
            "item": {"kind": "id", "side": "item", "dim": 4, "counts": True},
            "tags": {"kind": "ids", "counts": True},
            "pair": {"cross": ["item", "tags"], "buckets": 50, "counts": True},
        },
        "train": {
            "batch_rows": BATCH, "optimizer": "adagrad", "learning_rate": 0.1, "dense_learning_rate": 0.01, "seed": 1
        } | (train or {}),
    })  # fmt: skip


def rows(weight=None):
    random = np.random.default_rng(1)
    lengths = random.integers(0, 4, ROWS)
    tags = Ragged(random.integers(0, 6, lengths.sum()), np.append(0, np.cumsum(lengths)))
    columns = {"item": random.integers(0, 5, ROWS), "tags": tags}
    label = (random.random(ROWS) < 0.4).astype(np.float32)
    return Batch(columns, label, np.arange(ROWS, dtype=np.float64), 0, weight=weight)


def learned(batch, train=None):
    config = config_of(train)
    trainer = Trainer(draft(config, {}), config.train, config.network, tables=config.tables)
    for start in range(0, ROWS, BATCH):
        trainer.learn(batch.slice(start, start + BATCH))
    return trainer


def counted(trainer, name):
    exported = trainer.tables[name].export()
    return dict(zip(exported.keys.tolist(), exported.rows.tolist()))


@pytest.mark.parametrize("train", [{}, {"clip_norm": 0.01, "schedule": "linear", "warmup_steps": 2}])
def test_each_row_is_counted_once(train):
    batch = rows()
    trainer = learned(batch, train)
    items = batch.columns["item"]
    expected = {i: [float((items == i).sum()), float(batch.label[items == i].sum())] for i in range(5)}
    assert counted(trainer, "item.counts") == expected


def test_lists_count_each_of_their_values():
    batch = rows()
    tags = batch.columns["tags"]
    of_rows = np.repeat(np.arange(ROWS), np.diff(tags.row_splits))
    places = {tag: of_rows[tags.values == tag] for tag in range(6)}
    expected = {tag: [float(len(at)), float(batch.label[at].sum())] for tag, at in places.items()}
    trainer = learned(batch)
    assert counted(trainer, "tags") == expected
    pairs = counted(trainer, "pair")
    assert np.sum(list(pairs.values()), axis=0).tolist() == np.sum(list(expected.values()), axis=0).tolist()


def test_rows_without_weight_are_not_counted():
    weight = np.resize(np.array([0, 2, 5], np.float32), ROWS)
    batch, kept = rows(weight), weight > 0
    of_item = (batch.columns["item"] == 3) & kept
    assert counted(learned(batch), "item.counts")[3] == [of_item.sum(), batch.label[of_item].sum()]


def test_row_reads_what_was_counted_before_it():
    batch = rows()
    trainer = learned(batch)
    f = next(f for f in trainer.manifest.features if f.name == "item.counts")
    pooled = trainer.dense_inputs(batch.columns)["x"][:, f.offset : f.offset + 2]
    counts = counted(trainer, "item.counts")
    np.testing.assert_array_equal(pooled, [counts[i] for i in batch.columns["item"].tolist()])
