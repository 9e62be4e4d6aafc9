"""What depends on histories alone is computed for each distinct history, and each row reads its own."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.training.history_division import divide
from freshet_serving.models.zoo.arch import build_arch
from freshet_serving.models.zoo.dense_input import DenseInput
from tests.models.zoo.sequence_models import manifest

pytestmark = pytest.mark.tensorflow

LENGTH, ROWS, DISTINCT = 6, 10, 4


def make_layout(timed=True):
    described = manifest("stca", LENGTH, timed)
    return DenseInput.from_features(described.features, described.sequences)


def make_network(arch, **options):
    return build_arch(arch, make_layout(), {"hidden": (8,), **options}).logits


@pytest.mark.parametrize("arch", ["stca", "sasrec", "hstu"])
def test_divided_network_computes_the_same_logits(arch):
    network, own = make_network(arch), np.resize([2, 0, 0, 3, 1], ROWS)
    given = make_layout().examples(ROWS)
    distinct = given["history"][:DISTINCT]
    random, other = np.random.default_rng(3), [v.value for v in network.non_trainable_variables]
    # hstu begins with layers of zeros, so that a history changes nothing.
    weights = [v.numpy() + random.normal(0, 0.1, v.shape).astype("f4") for v in network.trainable_variables]
    whole, _ = network.stateless_call(weights, other, [given["x"], distinct[own]])
    got, _ = divide(network, [1]).call(weights, other, [given["x"], distinct], own.astype(np.int32), False)
    np.testing.assert_allclose(got, whole, atol=1e-6)


@pytest.mark.parametrize("arch", ["din", "bst"])
def test_network_whose_first_layer_reads_the_candidate_stays_whole(arch):
    assert divide(make_network(arch), [1]) is None


def test_dropout_of_candidates_is_no_reason_to_stay_whole():
    network = make_network("stca", dropout=0.5)
    other = [v.value for v in network.non_trainable_variables]
    given, weights = make_layout().examples(ROWS), [v.value for v in network.trainable_variables]
    _, after = divide(network, [1]).call(weights, other, [given["x"], given["history"]], np.arange(ROWS), True)
    assert len(after) == len(other) > 0
    assert any((a != b).numpy().any() for a, b in zip(after, other))


def over_events(first):
    """A network over what `first` makes of a history [n, width]."""
    x, history = keras.Input((3,)), keras.Input((8,))
    read = keras.ops.reshape(first(history), (-1, 2))
    return keras.Model([x, history], keras.layers.Dense(1)(keras.ops.concatenate([x, x[:, :2] * read], axis=1)))


def test_dropout_of_histories_keeps_the_network_whole():
    assert divide(over_events(lambda h: keras.layers.Dense(2)(h)), [1]) is not None
    assert divide(over_events(lambda h: keras.layers.Dropout(0.5)(keras.layers.Dense(2)(h))), [1]) is None


def test_rows_of_single_events_keep_the_network_whole():
    def of_events(history):
        return keras.layers.Dense(1)(keras.ops.reshape(history, (-1, 4)))

    x, history = keras.Input((3,)), keras.Input((8,))
    scaled = keras.ops.reshape(of_events(history) * keras.ops.reshape(x[:, :2], (-1, 1)), (-1, 2))
    assert divide(keras.Model([x, history], keras.layers.Dense(1)(scaled)), [1]) is None
