"""The softmax over items, what is left out of it and the loss of the bias, beside plain loops; and their gradients."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import tf
from freshet_serving.models.training.retrieval_functions import bias_loss, chosen_before, softmax_loss

pytestmark = pytest.mark.tensorflow

ROWS, CANDIDATES = 7, 11


def drawn(seed):
    """Rows of some users, with some items twice, and further items, some of them those of rows."""
    random = np.random.default_rng(seed)
    users, items = random.integers(0, 4, ROWS), random.integers(0, 5, CANDIDATES)
    items[ROWS:] = np.where(random.random(CANDIDATES - ROWS) < 0.5, ROWS, items[ROWS:])
    logits = random.standard_normal((ROWS, CANDIDATES)) * 3
    expected = np.log(random.random(CANDIDATES) + 0.1)
    expected[-1] = 1e30
    shares = random.random(ROWS)
    shares[2] = 0.0
    return users, items, logits, expected, shares / shares.sum()


def left_out(users, items):
    """Which candidates a row's user chose in some row, but for the row itself."""
    chose = {(u, i) for u, i in zip(users.tolist(), items[:ROWS].tolist())}
    return np.array(
        [[n != c and (users[n], items[c]) in chose for c in range(CANDIDATES)] for n in range(ROWS)], np.bool_
    )


def plain_loss(logits, expected, excluded, shares):
    total = 0.0
    for n in range(ROWS):
        some = [c for c in range(CANDIDATES) if not excluded[n, c] and expected[c] < 1e29]
        powers = np.exp([logits[n, c] - expected[c] for c in some])
        total += shares[n] * (np.log(powers.sum()) - (logits[n, n] - expected[n]))
    return total


def as_tensors(*arrays):
    return [tf.constant(array, tf.float32) for array in arrays]


@pytest.mark.parametrize("seed", range(5))
def test_items_that_the_user_chose_in_the_step_are_left_out(seed):
    users, items, *_ = drawn(seed)
    found = chosen_before(tf.constant(users, tf.int32), tf.constant(items, tf.int32))
    np.testing.assert_array_equal(found, left_out(users, items))


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_those_of_the_plain_softmax(seed):
    users, items, logits, expected, shares = drawn(seed)
    excluded = left_out(users, items)
    given, correction, weights = as_tensors(logits, expected, shares)
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = softmax_loss(given, correction, tf.constant(excluded), weights)
    assert float(loss) == pytest.approx(plain_loss(logits, expected, excluded, shares), rel=1e-5)
    numeric, step = np.zeros_like(logits), 1e-5
    for at in np.ndindex(*logits.shape):
        moved = [logits.copy(), logits.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        up, down = (plain_loss(one, expected, excluded, shares) for one in moved)
        numeric[at] = (up - down) / (2 * step)
    np.testing.assert_allclose(tape.gradient(loss, given), numeric, atol=1e-5)


def test_bias_alone_learns_from_pairs_and_the_next_rows_items():
    users, items, products, _, shares = drawn(3)
    excluded = left_out(users, items)
    given, weights, bias = *as_tensors(products, shares), tf.constant(0.3)
    with tf.GradientTape() as tape:
        tape.watch([given, bias])
        loss = bias_loss(given, tf.constant(2.0), bias, tf.constant(excluded), weights)
    by_products, by_bias = tape.gradient(loss, [given, bias])
    total = slope = 0.0
    for n in range(ROWS):
        other = (n + 1) % ROWS
        own, further = 2 * products[n, n] + 0.3, 2 * products[n, other] + 0.3
        counted = 0.0 if excluded[n, other] else shares[n]
        total += shares[n] * np.log1p(np.exp(-own)) + counted * np.log1p(np.exp(further))
        slope += -shares[n] / (1 + np.exp(own)) + counted / (1 + np.exp(-further))
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert float(by_bias) == pytest.approx(slope, rel=1e-4)
    assert by_products is None or not np.any(by_products)
