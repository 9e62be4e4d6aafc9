"""A batch in parts is learned as it is whole, where its rows do not see one another; else it stays whole."""

import itertools

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.training import dense_step
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.dense_step import DenseStep
from freshet_serving.models.training.losses import mean_shares
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.worker_pool import WorkerPool

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _parts_of_few_rows(monkeypatch):
    monkeypatch.setattr(dense_step, "PART_ROWS", 2)


def make_step(threads, arch="deepfm", options=None, **model):
    raw = {"model": {"name": "m", "arch": arch, **model, **(options or {})}, "data": {"path": "x.csv", "label": "y"}}
    config = parse_config(raw | {"features": {"a": {"kind": "float", "transform": "none"}, "b": {"kind": "float"}}})
    settings = chosen(config.train, config.features, None)
    return DenseStep(draft(config, {}), settings, config.network, worker_pool=WorkerPool(threads))


def learn(step, x, label, weight=None):
    """(loss, gradient by x, how many parts)"""
    step.ready(len(x))
    step.fill(lambda rows, inputs: np.copyto(inputs["x"], x[rows]))
    loss, found = step.gradients(label, mean_shares(len(label), weight))
    pieces = [(piece.start, piece.by_inputs["x"]) for piece in found]
    step.move()
    assert [start for start, _ in pieces] == list(itertools.accumulate([0, *(len(p) for _, p in pieces)]))[:-1]
    return loss, np.concatenate([piece for _, piece in pieces]), len(pieces)


def pairwise(label, logits):
    """A loss of rows that see one another: each against the mean of the batch."""
    return tf.nn.sigmoid_cross_entropy_with_logits(label, logits - tf.reduce_mean(logits))


def centred(layout, seed=0):
    """A network of rows that see one another, without a state."""
    x = keras.Input((layout.width,))
    h = x - keras.ops.mean(x, axis=0, keepdims=True)
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed))(h))


@pytest.mark.parametrize(("rows", "weighted"), [(4, True), (7, False), (9, True), (64, False)])
def test_loss_and_gradients_of_parts_equal_those_of_the_whole(rows, weighted):
    random = np.random.default_rng(rows)
    sides = [make_step(threads, options={"hidden": [4]}) for threads in (1, 2, 3)]
    for _ in range(3):
        x, label = random.standard_normal((rows, 2)).astype(np.float32), random.integers(0, 2, rows).astype(np.float32)
        weight = random.random(rows).astype(np.float32) if weighted else None
        whole, *others = [learn(side, x, label, weight) for side in sides]
        assert [side[2] for side in (whole, *others)] == [1, 2, min(3, rows // 2)]
        for loss, grad, _ in others:
            assert loss == pytest.approx(whole[0], rel=1e-5)
            np.testing.assert_allclose(grad, whole[1], rtol=1e-4, atol=1e-7)
    wanted = sides[0].weights()
    for side in sides[1:]:
        for name, weights in side.weights().items():
            np.testing.assert_allclose(weights, wanted[name], rtol=1e-4, atol=1e-6)
        scores = side.score(rows, lambda rows, inputs: np.copyto(inputs["x"], x[rows]))
        given = sides[0].score(rows, lambda rows, inputs: np.copyto(inputs["x"], x[rows]))
        np.testing.assert_allclose(scores, given, atol=1e-6)


@pytest.mark.parametrize("model", [{"loss": f"{__name__}:pairwise"}, {"arch": f"{__name__}:centred"}])
def test_network_with_batch_statistics_is_not_split(model):
    random = np.random.default_rng(0)
    x, label = random.standard_normal((9, 2)).astype(np.float32), random.integers(0, 2, 9).astype(np.float32)
    loss, grad, parts = learn(make_step(3, **model), x, label)
    again, gradient, _ = learn(make_step(1, **model), x, label)
    assert parts == 1
    assert (loss, grad.tobytes()) == (again, gradient.tobytes())


def test_random_numbers_differ_between_parts_and_steps():
    step = make_step(2, arch=f"{__name__}:noise")
    rows = np.ones((8, 2), np.float32)
    masks = [(learn(step, rows, np.ones(8, np.float32))[1][:, 0] != 0).reshape(2, 4) for _ in range(8)]
    assert any((one != other).any() for one, other in masks)
    assert any((one[0] != other[0]).any() for one, other in itertools.pairwise(masks))


def noise(layout, seed=0):
    """Half of the rows reach the score."""
    x = keras.Input((layout.width,))
    h = keras.layers.Dropout(0.5, noise_shape=(None, 1), seed=seed)(x)
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(h))
