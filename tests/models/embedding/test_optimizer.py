"""Row optimizers against their formulas in float64, row by row, and against Keras' own on a dense variable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.models.embedding.optimizer import OPTIMIZERS, RowOptions, row_optimizer
from freshet_serving.processor.errors import BadInput

ROWS, DIM, RATE = 12, 5, 0.05
OPTIONS = RowOptions(
    initial_accumulator=0.1, l1=0.01, l2=0.02, beta=0.5, weight_decay=0.01, accumulator_decay=0.5, decay_steps=7
)


def make_rows(seed=0, scale=0.3):
    return (np.random.default_rng(seed).standard_normal((ROWS, DIM)) * scale).astype(np.float32)


def gradients(steps, seed=1):
    return np.random.default_rng(seed).standard_normal((steps, ROWS, DIM)).astype(np.float32)


def make_slots(optimizer):
    return np.tile(optimizer.fill(DIM), (ROWS, 1)).astype(np.float32)


class Sgd:
    """One row, as its optimizer's paper or library has the formula, in float64."""

    def __init__(self, row, options):
        self.row, self.options = row.astype(np.float64), options

    def step(self, g, rate, step):
        self.row -= rate * g


class Adagrad(Sgd):
    """Duchi et al. 2011, with the epsilon of Keras."""

    def __init__(self, row, options):
        super().__init__(row, options)
        self.squares = np.full_like(self.row, options.initial_accumulator)

    def step(self, g, rate, step):
        self.squares += g * g
        self.row -= rate * g / np.sqrt(self.squares + 1e-7)


class AdagradDecay(Adagrad):
    """DeepRec: the squares are cut at every decay_steps of the run, whether the row is touched then or not."""

    def __init__(self, row, options):
        super().__init__(row, options)
        self.at = 0

    def step(self, g, rate, step):
        while self.at < step:
            self.at += 1
            if self.at % self.options.decay_steps == 0:
                self.squares *= self.options.accumulator_decay
                self.squares = np.maximum(self.squares, self.options.initial_accumulator)
        self.squares += g * g
        self.row -= rate * g / np.sqrt(self.squares)


class Adam(Sgd):
    """Kingma and Ba 2015, by the row's own steps, with the epsilon of Keras."""

    def __init__(self, row, options):
        super().__init__(row, options)
        self.m, self.v, self.t = np.zeros_like(self.row), np.zeros_like(self.row), 0

    def step(self, g, rate, step):
        self.t += 1
        self.m += (g - self.m) * (1 - 0.9)
        self.v += (g * g - self.v) * (1 - 0.999)
        corrected = rate * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        self.row -= corrected * self.m / (np.sqrt(self.v) + 1e-7)


class AdamW(Adam):
    """Loshchilov and Hutter 2019: the decay is not seen by the moments."""

    def step(self, g, rate, step):
        self.row *= 1 - rate * self.options.weight_decay
        super().step(g, rate, step)


class Ftrl(Sgd):
    """McMahan et al. 2013, with beta as in the paper and l2 as in TensorFlow."""

    def __init__(self, row, options):
        super().__init__(row, options)
        self.n, self.z = np.full_like(self.row, options.initial_accumulator), np.zeros_like(self.row)

    def step(self, g, rate, step):
        sigma = (np.sqrt(self.n + g * g) - np.sqrt(self.n)) / rate
        self.z += g - sigma * self.row
        self.n += g * g
        options = self.options
        shrunk = -(self.z - np.sign(self.z) * options.l1) / ((options.beta + np.sqrt(self.n)) / rate + 2 * options.l2)
        self.row = np.where(np.abs(self.z) <= options.l1, 0.0, shrunk)


FORMULAS = {
    "adagrad": Adagrad, "adagrad_decay": AdagradDecay, "adam": Adam, "adamw": AdamW, "ftrl": Ftrl, "sgd": Sgd,
}  # fmt: skip

batches = st.lists(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS), min_size=1, max_size=30)


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=25, deadline=None)
@given(touched=batches, seed=st.integers(0, 2**32 - 1), rate=st.sampled_from([0.001, 0.05, 0.3]), plain=st.booleans())
def test_rows_move_as_the_formula_moves_each_separately(name, touched, seed, rate, plain):
    options = RowOptions() if plain else OPTIONS
    optimizer, rows = row_optimizer(name, options), make_rows()
    slots, wanted = make_slots(optimizer), [FORMULAS[name](row, options) for row in rows]
    path, draw = np.abs(rows.astype(np.float64)), np.random.default_rng(seed)
    for step, batch in enumerate(touched, 1):
        sums = draw.standard_normal((len(batch), DIM), np.float32)
        optimizer.update(np.array(batch, np.int64), sums, rows, slots, rate, step)
        for row, g in zip(batch, sums.astype(np.float64)):
            before = wanted[row].row.copy()
            wanted[row].step(g, rate, step)
            path[row] += np.abs(wanted[row].row - before) + rate * np.abs(g)
        still = [row for row in range(ROWS) if row not in set().union(*touched[:step])]
        assert rows[still].tobytes() == make_rows()[still].tobytes()
        assert slots[still].tobytes() == make_slots(optimizer)[still].tobytes()
    exact = np.array([row.row for row in wanted])
    assert (np.abs(rows - exact) <= 2e-6 * path).all()


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"adagrad_decay"}))
@pytest.mark.parametrize("rate", [0.05, 0.001])
def test_rows_touched_by_every_step_move_like_keras_variables(name, rate):
    pytest.importorskip("tensorflow", reason="Keras is part of the train extra")
    from freshet_serving.compiler.frameworks import keras

    optimizer, rows = row_optimizer(name, OPTIONS), make_rows()
    slots = make_slots(optimizer)
    theirs = {
        "adagrad": lambda: keras.optimizers.Adagrad(rate),
        "adam": lambda: keras.optimizers.Adam(rate),
        "adamw": lambda: keras.optimizers.AdamW(rate, weight_decay=0.01),
        "ftrl": lambda: keras.optimizers.Ftrl(
            rate, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.5
        ),
        "sgd": lambda: keras.optimizers.SGD(rate),
    }[name]()
    dense = keras.Variable(rows)
    theirs.build([dense])
    order, path = np.random.default_rng(2), np.abs(rows)
    for step, gradient in enumerate(gradients(25), 1):
        before = rows.copy()
        touched = order.permutation(ROWS)
        optimizer.update(touched, np.ascontiguousarray(gradient[touched]), rows, slots, rate, step)
        theirs.apply([gradient], [dense])
        path += np.abs(rows - before) + (rate * np.abs(gradient) if name == "ftrl" else 0)
        # Relative to the way that an element has come. Keras takes 1 - beta ** step in float32, which at the first
        # steps is off by 1e-5 of the rate: hence the second term, and the test in float64 above.
        bound = 1e-6 * path + (1e-4 * rate if name.startswith("adam") else 0)
        assert (np.abs(rows - np.asarray(dense)) <= bound).all()


def test_ftrl_with_l1_makes_irrelevant_rows_exactly_zero():
    optimizer, rows = row_optimizer("ftrl", RowOptions(l1=5.0)), make_rows()
    slots = make_slots(optimizer)
    for step, gradient in enumerate(gradients(20), 1):
        optimizer.update(np.arange(ROWS), gradient * np.float32(0.01), rows, slots, RATE, step)
    assert not rows.any()


def test_unknown_optimizer_is_refused_by_name():
    with pytest.raises(BadInput, match=r"adagrad, adagrad_decay, adam, adamw, ftrl, sgd, got 'rmsprop'"):
        row_optimizer("rmsprop")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"adamw"}))
@pytest.mark.parametrize("options", [RowOptions(), OPTIONS])
def test_imported_rows_do_not_move_until_they_are_trained(name, options):
    optimizer, rate, step = row_optimizer(name, options), 0.05, 1000
    rows = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    rows[0] = 0.0
    slots = optimizer.slots_of(rows, rate, step)
    assert slots.shape == (5, optimizer.slots_a_row(4))
    moved = rows.copy()
    optimizer.update(np.arange(5), np.zeros((5, 4), np.float32), moved, slots, rate, step)
    np.testing.assert_allclose(moved, rows, rtol=1e-5, atol=1e-7)
    if name == "adagrad_decay":
        assert (slots[:, :4] == np.float32(options.initial_accumulator)).all()
