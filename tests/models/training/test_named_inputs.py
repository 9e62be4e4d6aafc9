"""A new kind of input, rows x 3, with a filler of its own: trained, published, compiled, served, in one file."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.training.publication import publish_version
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package import SCORE, GraphInput
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.running import fillers
from tests.models.training.streams import MixedSource, make_config
from tests.models.training.trainers import make_trainer

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

    def fill(tables, epoch, bound, spans, out, counts):
        one = np.zeros((len(out), 1), np.float32)
        number.fill(tables, epoch, bound, spans, one, counts)
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
    manifest = replace(trainer.manifest, model="m", version=1)
    exported = {name: table.export() for name, table in trainer.tables.items()}
    tables = {name: (found.keys, found.rows) for name, found in exported.items()}
    (tmp_path / "served").mkdir()
    publish_version(tmp_path / "served", manifest, tables, trainer.dense.published(), buckets=(1, 16, 64))
    version = VersionReader(tmp_path / "served" / "m" / "1")
    assert {i.name: i.dims for i in version.manifest.graphs["score"].inputs}[KIND] == ["rows", 3]
    batch = next(iter(source.batches(40)))
    with Processor.initialize(ProcessorConfig(str(tmp_path / "served"), sessions=1)) as processor:
        got = processor.process(PredictRequest("m", dict(batch.columns))).outputs["score"]
    np.testing.assert_allclose(got[:, 0], trainer.score(batch.columns), atol=1e-5)
