"""Gates multiply the embeddings of a feature by one number, and begin as 1."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="the zoo needs the train extra")

from freshet_serving.compiler.frameworks import keras
from freshet_serving.models.zoo.dense_input import ColumnSpan, DenseInput
from freshet_serving.models.zoo.field_gates import FASTER, gated

pytestmark = pytest.mark.tensorflow

SPANS = (
    ColumnSpan("user", 0, 3, side="user"),
    ColumnSpan("price", 3, 1, side="item"),
    ColumnSpan("item", 4, 2, side="item"),
    ColumnSpan("films", 6, 6, 2, "user"),
    ColumnSpan("shop", 12, 2, side="item"),
)
LAYOUT = DenseInput(14, tuple(span for span in SPANS if span.width > 1), (SPANS[1],))


def model(layout=LAYOUT):
    x = keras.Input((layout.width,))
    return keras.Model(x, gated(x, layout))


def test_gates_that_have_learned_nothing_change_nothing():
    x = LAYOUT.examples(5)["x"]
    np.testing.assert_allclose(model()(x), x, rtol=1e-6)


def test_gate_multiplies_its_embedding_and_neither_floats_nor_masks():
    network, x = model(), LAYOUT.examples(5)["x"]
    (gates,) = network.weights
    gates.assign([2 / FASTER, 0.0, -1 / FASTER])
    factors = np.repeat([2, 1, 0, 1, -1], [span.width for span in SPANS])
    np.testing.assert_allclose(network(x), x * factors, rtol=1e-6)


def test_gate_closes_where_an_embedding_says_the_opposite_of_the_label():
    layout = DenseInput(1, (ColumnSpan("item", 0, 1),), ())
    network, x = model(layout), np.array([[1.0], [-1.0]], np.float32)
    label = np.array([[0.0], [1.0]], np.float32)
    network.compile(keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
    before = float(network.weights[0].numpy()[0])
    network.fit(x, label, epochs=1, verbose=0)
    assert network.weights[0].numpy()[0] < before


def test_input_without_embeddings_has_no_gates():
    layout = DenseInput(1, (), (ColumnSpan("price", 0, 1),))
    x = keras.Input((1,))
    assert gated(x, layout) is x
