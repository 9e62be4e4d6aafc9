"""Against Adam in plain numpy, with the decay and the clipping that were asked for."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from compiler.frameworks import keras, tf
from models.config.train_section import TrainSettings
from models.training.dense_optimizer import dense_optimizer

pytestmark = pytest.mark.tensorflow
RATE, BETA_1, BETA_2, EPSILON = 0.05, 0.9, 0.999, 1e-7


def adam(weights, gradients, decay, clip, decayed):
    """weights: list of arrays; gradients: a list of them a step."""
    m, v = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    for t, grads in enumerate(gradients, 1):
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        for i, g in enumerate(grads):
            if clip and norm > clip:
                g = g * clip / norm
            if decayed[i]:
                weights[i] = weights[i] * (1 - decay * RATE)
            m[i] = BETA_1 * m[i] + (1 - BETA_1) * g
            v[i] = BETA_2 * v[i] + (1 - BETA_2) * g**2
            alpha = RATE * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
            weights[i] = weights[i] - alpha * m[i] / (np.sqrt(v[i]) + EPSILON)
    return weights


@pytest.mark.parametrize(("decay", "clip"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.5), (0.3, 0.5)])
def test_it_is_adam_with_decoupled_decay_of_kernels_and_one_norm_for_all_gradients(decay, clip):
    random = np.random.default_rng(0)
    shapes, names = [(4, 3), (3,), (3,)], ["kernel", "bias", "gamma"]
    began = [random.standard_normal(shape) for shape in shapes]
    gradients = [[random.standard_normal(shape) * 2 for shape in shapes] for _ in range(6)]
    variables = [keras.Variable(w.astype(np.float32), name=n) for w, n in zip(began, names)]
    settings = TrainSettings(dense_learning_rate=RATE, dense_weight_decay=decay, dense_clip_norm=clip)
    optimizer = dense_optimizer(settings)
    optimizer.build(variables)
    for grads in gradients:
        optimizer.apply([tf.constant(g, tf.float32) for g in grads], variables)
    wanted = adam(began, gradients, decay, clip, [True, False, False])
    for variable, weights in zip(variables, wanted):
        np.testing.assert_allclose(variable.numpy(), weights, rtol=2e-4, atol=2e-5)


def test_its_state_is_the_same_whatever_is_asked_for():
    states = []
    for settings in (TrainSettings(), TrainSettings(dense_weight_decay=0.1, dense_clip_norm=1.0)):
        optimizer = dense_optimizer(settings)
        optimizer.build([keras.Variable(np.zeros((2, 2), np.float32), name="kernel")])
        states.append([v.shape for v in optimizer.variables])
    assert states[0] == states[1]
