"""Weights and moments in three vectors are what they are by name."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.training.dense_state import FIRST, SECOND, WEIGHTS, DenseState

pytestmark = pytest.mark.tensorflow


def make_state():
    x = keras.Input((3,))
    h = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(2, name="first")(x))
    model = keras.Model(x, keras.layers.Dropout(0.5)(keras.layers.Dense(1, name="last")(h)))
    return model, DenseState(model.trainable_variables, model.non_trainable_variables, 1)


def test_state_starts_with_keras_values_and_a_fresh_optimizer():
    model, state = make_state()
    named = state.named()
    for variable in model.variables:
        np.testing.assert_array_equal(named[variable.path], variable.numpy())
    assert state.steps == 0
    assert not any(moment.any() for name, moment in state.optimizer().items() if name.isdigit())


def test_vectors_contain_concatenated_weights_above_their_moments():
    model, state = make_state()
    state.assign({"first/kernel": np.arange(6).reshape(3, 2), "nobody": np.ones(1)})
    vectors = state.held_vectors().view()
    assert vectors.shape == (3, sum(v.numpy().size for v in model.trainable_variables))
    np.testing.assert_array_equal(vectors[WEIGHTS, :6], np.arange(6))
    assert not vectors[[FIRST, SECOND]].any()
    assert [spec.shape for spec in state.specs()] == [held.spec.shape for held in state.held()]


def test_named_state_is_restored_bitwise():
    (_, one), (_, other) = make_state(), make_state()
    random = np.random.default_rng(0)
    optimizer = {
        name: random.integers(0, 9, array.shape).astype(array.dtype) for name, array in one.optimizer().items()
    }
    weights = {name: random.random(array.shape).astype(array.dtype) for name, array in one.named().items()}
    one.restore(weights, optimizer)
    other.restore(one.named(), one.optimizer())

    assert other.steps == int(optimizer["0000"])
    assert other.optimizer().keys() == optimizer.keys()
    for name, array in other.optimizer().items():
        assert array.tobytes() == optimizer[name].tobytes()
    assert other.held_vectors().view().tobytes() == one.held_vectors().view().tobytes()


def test_new_weights_keep_the_moments_and_other_state():
    _, state = make_state()
    before = state.optimizer() | {"dropout_0000": np.array([5, 6], np.uint32)}
    before["0002"] = np.full_like(before["0002"], 3)
    state.restore({}, before)
    state.assign({"norm/moving_mean": np.array([1.0, 2.0], np.float32), "last/bias": np.array([9.0])})
    assert {name: array.tobytes() for name, array in state.optimizer().items()} == {
        name: array.tobytes() for name, array in before.items()
    }
    np.testing.assert_array_equal(state.named()["norm/moving_mean"], [1, 2])
    np.testing.assert_array_equal(state.named()["last/bias"], [9])
