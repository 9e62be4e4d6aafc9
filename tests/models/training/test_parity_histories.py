"""Features of histories under a network that reads features alone: trained, served and computed by hand, they agree."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Field, Schema
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig

pytestmark = pytest.mark.tensorflow

BUCKETS, ITEMS, ROWS = 50_000, 40, 512
LENGTHS = (0, 1, 20, 256)
GAP_S = 6 * 3_600
"""Time from one event of a history to the next."""


def config_of(folder, **publish):
    return parse_config({
        "model": {"name": "shop", "arch": "deepfm", "hidden": [4]},
        "data": {"path": "x.parquet", "format": "parquet", "label": "y", "time": "ts"},
        "features": {
            "item": {"kind": "id", "side": "item", "dim": 4},
            "same_item": {"kind": "id", "from": "item", "side": "item", "dim": 4, "table": "item"},
            "last": {"kind": "id", "from": "history.item", "take": -1, "dim": 4},
            "bought": {
                "kind": "ids", "from": "history.item", "take": -3, "where": {"action": "buy"}, "dim": 4,
                "table": "item",
            },
            "pairs": {"cross": ["history.item", "item"], "decay": "position", "buckets": BUCKETS, "dim": 4},
            "aged": {"cross": ["history.item", "item"], "decay": "age", "buckets": BUCKETS, "dim": 4},
            "last_item": {"cross": ["last", "item"], "buckets": BUCKETS, "dim": 4, "wide": True},
            "weight": {"cross": ["history.item", "item"], "buckets": BUCKETS, "wide": True},
            "had": {"cross": ["item", "history.item"], "equal": True, "take": -3, "decay": "position", "dim": 4},
            "again": {"cross": ["history.item", "item"], "equal": True, "counts": True},
            "again_item": {
                "cross": ["history.item", "item", "same_item"], "equal": True, "buckets": BUCKETS, "counts": True,
            },
            "seen": {"cross": ["history.item", "item"], "buckets": BUCKETS, "counts": True},
        },
        "sequences": {
            "history": {"columns": {"item": "items", "action": "actions"}, "time": "times", "max_length": 256}
        },
        "train": {"batch_rows": 64, "optimizer": "adagrad", "learning_rate": 0.1, "seed": 1},
        "publish": {"repository": str(folder), "full_rows": ROWS} | publish,
    })  # fmt: skip


def events(random, lengths):
    items = [random.integers(0, ITEMS, n) for n in lengths]
    splits = np.append(0, np.cumsum(lengths))
    actions = Strings.of(["buy" if n % 3 == 0 else "view" for n in np.concatenate(items)])
    times = Ragged(1_700_000_000 + GAP_S * np.concatenate([np.arange(n) for n in lengths]).astype(np.int64), splits)
    return items, Ragged(np.concatenate(items), splits), Ragged(actions, splits), times


class Lists:
    """Rows with histories of every length in list columns."""

    def __init__(self):
        random = np.random.default_rng(1)
        lengths = random.choice([0, 1, 2, 5, 20, 256], ROWS, p=[0.1, 0.2, 0.3, 0.3, 0.08, 0.02])
        _, items, actions, times = events(random, lengths)
        columns = {"item": random.integers(0, ITEMS, ROWS), "items": items, "actions": actions, "times": times}
        label = (random.random(ROWS) < 0.4).astype(np.float32)
        fields = (Field("item", "id"), Field("items", "ids"), Field("actions", "strings"), Field("times", "ids"))
        self.schema = Schema(fields, "y", "ts")
        self.all = Batch(columns, label, np.arange(ROWS, dtype=np.float64), 0)

    def count_rows(self):
        return ROWS

    def batches(self, rows, start=0):
        for first in range(start, ROWS, rows):
            yield self.all.slice(first, min(first + rows, ROWS))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = config_of(tmp_path_factory.mktemp("repository"))
    trained = TrainingRun(config, SequenceSource(Lists(), config.features))
    trained.full()
    return trained


@pytest.fixture(scope="module")
def processor(run):
    with Processor.initialize(ProcessorConfig(run.config.publish.repository, sessions=1)) as opened:
        yield opened


def by_hand(run, history, candidate):
    """The dense input of one row, from exported rows; the pairs are hashed by TensorFlow."""

    def pooled(table, ids):
        export = run.trainer.tables[table].export()
        rows = dict(zip(export.keys.tolist(), export.rows))
        return sum((rows[n] for n in ids if n in rows), np.zeros(export.rows.shape[1], np.float32))

    def crossed(some):
        values = [tf.constant([[n]], tf.int64) for n in [*some, candidate]]
        pairs = [tf.sparse.cross_hashed([value, values[-1]], BUCKETS) for value in values[:-1]]
        return [int(pair.values.numpy()[0]) for pair in pairs]

    newest = [n.item() for n in history[::-1]]
    parts = {
        "item": pooled("item", [candidate]),
        "last": pooled("last", newest[:1]),
        "bought": pooled("item", [n for n in newest if n % 3 == 0][:3]),
        "last_item": pooled("last_item", crossed(newest[:1])),
        "last_item.wide": pooled("last_item.wide", crossed(newest[:1])),
        "weight": pooled("weight", crossed(newest)),
        "seen": pooled("seen", crossed(newest)),
        "same_item": pooled("item", [candidate]),
        "again_item": pooled("again_item", crossed([newest.count(candidate).bit_length()])),
        "again": pooled("again", [newest.count(candidate).bit_length()]),
        "had": pooled("had", [newest[:1].count(candidate)]),
        "had.2": pooled("had", [newest[1:2].count(candidate)]),
        "had.3": pooled("had", [newest[2:3].count(candidate)]),
        "pairs": pooled("pairs", crossed(newest[:1])),
    }
    parts |= {f"pairs.{n}": pooled("pairs", crossed(newest[n - 1 : n])) for n in (2,)}
    for first in (2, 4, 8, 16, 32, 64, 128):
        parts[f"pairs.{first + 1}-{2 * first}"] = pooled("pairs", crossed(newest[first : 2 * first]))
    ages = {"aged": (0, 1), "aged.day": (1, 4), "aged.week": (4, 28), "aged.month": (28, 120), "aged.older": (120, 256)}
    parts |= {name: pooled("aged", crossed(newest[first:end])) for name, (first, end) in ages.items()}
    return np.concatenate([parts[f.name] for f in run.trainer.manifest.features])


@pytest.mark.parametrize("length", LENGTHS)
def test_scores_are_those_of_the_trainer_and_of_rows_added_by_hand(run, processor, length):
    history, items, actions, times = events(np.random.default_rng(length), [length])
    candidates = np.array([3, 17], np.int64)
    columns = {"history.item": items, "history.action": actions, "history.time": times, "item": candidates}
    expected = np.stack([by_hand(run, history[0], n) for n in candidates.tolist()])
    pooled = run.trainer.dense_inputs(columns)["x"]
    np.testing.assert_allclose(pooled, expected, atol=1e-5)
    reply = processor.process(PredictRequest("shop", columns))
    np.testing.assert_allclose(reply.outputs["score"].reshape(-1), run.trainer.score(columns), atol=1e-5)
    assert length < 2 or np.abs(pooled).max() > 0.01
