"""Row optimizers against Keras' own on a dense variable."""

import numpy as np
import pytest

from models.embedding.optimizer import OPTIMIZERS, row_optimizer
from processor.errors import BadInput

ROWS, DIM, RATE = 12, 5, 0.05


def make_rows(seed=0, scale=0.3):
    return (np.random.default_rng(seed).standard_normal((ROWS, DIM)) * scale).astype(np.float32)


def gradients(steps, seed=1):
    return np.random.default_rng(seed).standard_normal((steps, ROWS, DIM)).astype(np.float32)


def make_slots(optimizer):
    return np.tile(optimizer.fill(DIM), (ROWS, 1)).astype(np.float32)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rate", [0.05, 0.001])
def test_rows_that_every_step_touches_move_as_keras_moves_a_dense_variable(name, rate):
    pytest.importorskip("tensorflow", reason="Keras is part of the train extra")
    from compiler.frameworks import keras

    optimizer, rows = row_optimizer(name), make_rows()
    slots = make_slots(optimizer)
    theirs = {"adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam, "ftrl": keras.optimizers.Ftrl}[name](
        rate
    )
    dense = keras.Variable(rows)
    theirs.build([dense])
    order, path = np.random.default_rng(2), np.abs(rows)
    for gradient in gradients(25):
        before = rows.copy()
        touched = order.permutation(ROWS)
        optimizer.update(touched, np.ascontiguousarray(gradient[touched]), rows, slots, np.float32(rate))
        theirs.apply([gradient], [dense])
        path += np.abs(rows - before)
        # Relative to the way that an element has come. Keras takes 1 - beta ** step in float32, which at the first
        # steps is off by 1e-5 of the rate: hence the second term, and the test in float64 below.
        bound = 1e-6 * path + (1e-4 * rate if name == "adam" else 0)
        assert (np.abs(rows - np.asarray(dense)) <= bound).all()


def test_adam_is_its_formula_in_float64_to_float32_precision():
    optimizer, rows = row_optimizer("adam"), make_rows()
    slots, exact = make_slots(optimizer), make_rows().astype(np.float64)
    m, v, path = np.zeros_like(exact), np.zeros_like(exact), np.abs(exact)
    for t, gradient in enumerate(gradients(25), 1):
        optimizer.update(np.arange(ROWS), gradient, rows, slots, np.float32(RATE))
        m += (gradient - m) * (1 - 0.9)
        v += (np.float64(gradient) ** 2 - v) * (1 - 0.999)
        move = RATE * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
        exact -= move
        path += np.abs(move)
        assert (np.abs(rows - exact) <= 1e-6 * path).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_that_no_step_touches_never_move(name):
    optimizer, rows = row_optimizer(name), make_rows()
    slots = make_slots(optimizer)
    still = np.array([0, 3, 11])
    moving = np.setdiff1d(np.arange(ROWS), still)
    before = rows[still].tobytes(), slots[still].tobytes()
    for gradient in gradients(10):
        optimizer.update(moving, np.ascontiguousarray(gradient[moving]), rows, slots, np.float32(RATE))
    assert (rows[still].tobytes(), slots[still].tobytes()) == before
    assert (rows[moving] != make_rows()[moving]).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_moves_by_its_own_history_alone(name):
    """A row touched at steps 1, 4 and 9 ends where one touched at steps 1, 2 and 3 does: nothing decays unseen."""
    optimizer = row_optimizer(name)
    ends = []
    for others in (0, 3):
        rows = make_rows()
        slots = make_slots(optimizer)
        for gradient in gradients(3):
            optimizer.update(np.array([4]), gradient[4:5].copy(), rows, slots, np.float32(RATE))
            for _ in range(others):
                optimizer.update(np.array([5]), gradient[5:6].copy(), rows, slots, np.float32(RATE))
        ends.append(rows[4].tobytes() + slots[4].tobytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_rows_are_no_work(name):
    optimizer, rows = row_optimizer(name), make_rows()
    slots = make_slots(optimizer)
    optimizer.update(np.empty(0, np.int64), np.empty((0, DIM), np.float32), rows, slots, np.float32(RATE))
    assert rows.tobytes() == make_rows().tobytes()


def test_an_unknown_optimizer_is_refused_by_name():
    with pytest.raises(BadInput, match=r"adagrad, adam, ftrl wanted, got 'sgd'"):
        row_optimizer("sgd")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_from_elsewhere_stay_where_they_are_until_they_are_learned_on(name):
    optimizer, rate = row_optimizer(name), 0.05
    rows = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    slots = optimizer.slots_of(rows, rate)
    assert slots.shape == (5, optimizer.slots_a_row(4))
    moved = rows.copy()
    optimizer.update(np.arange(5), np.zeros((5, 4), np.float32), moved, slots, rate)
    np.testing.assert_allclose(moved, rows, rtol=1e-5)
