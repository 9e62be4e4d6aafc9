"""Against Adam in plain numpy, with the decay and the clipping that were asked for."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.training.dense_optimizer import correction, moved

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
def test_optimizer_is_adam_with_decoupled_decay_and_global_norm_clipping(decay, clip):
    random = np.random.default_rng(0)
    shapes, names = [(4, 3), (3,), (3,)], ["kernel", "bias", "gamma"]
    began = [random.standard_normal(shape) for shape in shapes]
    gradients = [[random.standard_normal(shape) * 2 for shape in shapes] for _ in range(6)]
    settings = TrainSettings(dense_learning_rate=RATE, dense_weight_decay=decay, dense_clip_norm=clip)
    vectors = tf.constant(np.stack([np.concatenate([w.reshape(-1) for w in began]), *np.zeros((2, 18))]), tf.float32)
    sizes = [(name, int(np.prod(shape))) for name, shape in zip(names, shapes)]
    for step, grads in enumerate(gradients, 1):
        grad = tf.constant(np.concatenate([g.reshape(-1) for g in grads]), tf.float32)
        vectors = moved(settings, sizes, vectors, grad, RATE, RATE * correction(step))
    wanted = adam(began, gradients, decay, clip, [True, False, False])
    by_hand = np.concatenate([weight.reshape(-1) for weight in wanted])
    np.testing.assert_allclose(vectors[0].numpy(), by_hand, rtol=2e-4, atol=2e-5)
