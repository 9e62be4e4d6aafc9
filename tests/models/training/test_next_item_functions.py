"""The loss of next items, in a loop over targets, is the plain softmax, and so are its gradients."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.training import next_item_functions
from freshet_serving.models.training.next_item_functions import softmax_loss

pytestmark = pytest.mark.tensorflow


def plain_loss(states, targets, candidates, raised, places, shares, slots=None, lifts=None, own_lifts=None):
    own = tf.reduce_sum(states * targets, axis=1, keepdims=True)
    itself = np.asarray(places)[:, None] == np.arange(len(candidates))
    others = tf.matmul(states, candidates, transpose_b=True) + raised
    if slots is not None:
        own = own + own_lifts[:, None]
        others = others + tf.reduce_sum(tf.one_hot(slots, len(candidates)) * lifts[:, :, None], 1)
    others = tf.where(itself, -1e9, others)
    losses = tf.reduce_logsumexp(tf.concat([own, others], 1), axis=1) - own[:, 0]
    return tf.reduce_sum(losses * shares)


@pytest.mark.parametrize("lifted", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_loss_and_gradients_are_those_of_the_plain_softmax(count, lifted, monkeypatch):
    monkeypatch.setattr(next_item_functions, "CHUNK", 4)
    random = np.random.default_rng(count)
    states, targets, candidates = (
        tf.constant(random.standard_normal(shape), tf.float32) for shape in ((11, 3), (11, 3), (7, 3))
    )
    raised = tf.constant([0.5] * 6 + [-1e9], tf.float32)
    places = tf.constant(random.integers(-1, 6, 11), tf.int32)
    real = random.permutation(11)[:count]
    shares = np.zeros(11, np.float32)
    shares[real] = random.random(count)
    order = tf.constant([*real, *np.setdiff1d(np.arange(11), real)], tf.int32)
    given, slots = (states, targets, candidates), ()
    if lifted:
        slots = (tf.constant(np.array([random.permutation(8)[:3] - 1 for _ in range(11)]), tf.int32),)
        given += tuple(tf.constant(random.standard_normal(shape), tf.float32) for shape in ((11, 3), (11,)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(given)
        found = softmax_loss(
            *given[:3], raised, places, tf.constant(shares), order, tf.constant(count), *slots, *given[3:]
        )
        wanted = plain_loss(*given[:3], raised, places, shares, *slots, *given[3:])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for got, expected in zip(tape.gradient(found, given), tape.gradient(wanted, given)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
