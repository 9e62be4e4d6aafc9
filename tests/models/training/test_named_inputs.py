"""A new kind of input, rows x 3, with a filler of its own: trained, published, compiled, served, in one file."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.config.model_section import NetworkConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package import SCORE, GraphInput
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running import fillers
from tests.models.training.streams import MixedSource, make_config
from tests.models.training.trainers import make_trainer
from tests.models.zoo.sequence_models import Rows, make_batch, manifest, publish, scaled, sigmoid

pytestmark = pytest.mark.tensorflow

KIND = "powers"


def build(layout, hidden=(16,), seed=0):
    """A network over x and, rows x 3, the first number of a row, its square and its cube."""
    x, powers = keras.Input((layout.width,), name="x"), keras.Input((3,), name=KIND)
    h = keras.layers.Dense(hidden[0], activation="relu")(keras.layers.Concatenate()([x, powers]))
    return keras.Model([x, powers], keras.layers.Dense(1)(h))


def fill_powers(given, plan):
    """Returns the filler of a rows x 3 input: powers of the first float feature."""
    number = plan.pooling(["price"])

    def fill(view, out):
        one = np.zeros((len(out), 1), np.float32)
        number.fill(view, one)
        out[:] = np.concatenate([one, one**2, one**3], axis=1)

    return fill


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.setitem(fillers.FILLERS, KIND, fill_powers)


def test_new_kind_of_input_is_trained_published_and_served(kind, tmp_path):
    source = MixedSource(256)
    trainer = make_trainer(make_config(tmp_path, arch=f"{__name__}:build"), source)
    assert trainer.manifest.graphs[SCORE].inputs[1:] == [GraphInput(KIND, ["rows", 3], KIND)]
    losses = [trainer.learn(batch) for _ in range(4) for batch in source.batches(64)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    described = replace(trainer.manifest, model="m", version=1)
    exported = {name: table.export() for name, table in trainer.tables.items()}
    tables = {name: (found.keys, found.rows) for name, found in exported.items()}
    (tmp_path / "served").mkdir()
    publish_version(tmp_path / "served", described, tables, trainer.dense.published(), buckets=(1, 16, 64))
    version = VersionReader(tmp_path / "served" / "m" / "1")
    assert {i.name: i.dims for i in version.manifest.graphs["score"].inputs}[KIND] == ["rows", 3]
    batch = next(iter(source.batches(40)))
    with Processor.initialize(ProcessorConfig(str(tmp_path / "served"), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", dict(batch.columns))).outputs["score"]
    np.testing.assert_allclose(got[:, 0], trainer.score(batch.columns), atol=1e-5)


def build_watched(layout, seed=0):
    """A network over x and the sums of what events have in their columns of floats."""
    (span,) = layout.sequences
    x, history = keras.Input((layout.width,), name="x"), keras.Input((span.width,), name=span.name)
    floats = [history[:, c.offset : c.offset + span.max_length] for c in span.columns if not c.table]
    sums = [keras.ops.sum(values, axis=1, keepdims=True) for values in floats]
    return keras.Model([x, history], keras.layers.Dense(1, name="out")(keras.layers.Concatenate()([x, *sums])))


def test_own_architecture_reads_floats_of_events(tmp_path):
    made = manifest(f"{__name__}:build_watched", 5, floats=True)
    trainer = Trainer(made, TrainSettings(optimizer="adagrad", learning_rate=0.1, seed=3), NetworkConfig({}))
    for seed in range(5):
        trainer.learn(make_batch(64, (0, 1, 5, 7), seed, floats=True))
    columns = make_batch(20, (0, 1, 5, 7), 99, floats=True).columns
    weights, rows = trainer.dense.weights(), Rows(trainer, columns)
    watched, splits = columns["history.watched"].values, columns["history.watched"].row_splits
    sums = [scaled(watched[max(a, b - 5) : b]).sum() for a, b in zip(splits, splits[1:])]
    logits = np.concatenate([rows.x, np.array(sums)[:, None]], axis=1) @ weights["out/kernel"] + weights["out/bias"]
    np.testing.assert_allclose(trainer.score(columns), sigmoid(logits)[:, 0], atol=1e-5)
    publish(trainer, tmp_path / "r", (1, 8))
    with Processor.initialize(ProcessorConfig(str(tmp_path / "r"), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", columns)).outputs["score"]
    np.testing.assert_allclose(got[:, 0], trainer.score(columns), atol=1e-5)
