"""Layer normalisations of Keras as one ONNX node: what is fused, what is not, and equal numbers."""

import numpy as np
import pytest

pytest.importorskip("tf2onnx", reason="compiling needs the train extra")

import onnx
import onnxruntime

from freshet_serving.compiler.backends.onnxruntime import to_onnx
from freshet_serving.compiler.frameworks import keras, tf
from tests.compiler.passes.graphs import dense
from tests.support.onnx_weights import with_values

UNITS = 6
ROWS = np.random.default_rng(3).normal(2.0, 3.0, (7, 4 * UNITS)).astype(np.float32)


def normalised(x, w, axes=-1, epsilon=1e-3):
    """Return what keras.layers.LayerNormalization computes."""
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    shape = [1] * (len(x.shape) - 1) + [UNITS]
    factor = tf.math.rsqrt(variance + epsilon) * tf.reshape(w["gamma"], shape)
    return x * factor + (-mean * factor + tf.reshape(w["beta"], shape))


def converted(function):
    """Return the operators of the ONNX model, and the largest difference from TensorFlow's scores."""
    graph = dense(function, 4 * UNITS, gamma=(UNITS,), beta=(UNITS,))
    model, _ = to_onnx(graph)
    session = onnxruntime.InferenceSession(with_values(model, graph.weights), providers=["CPUExecutionProvider"])
    weights = {name: tf.constant(value) for name, value in graph.weights.items()}
    found, expected = session.run(None, {"x": ROWS})[0], function(tf.constant(ROWS), weights).numpy()
    return [node.op_type for node in onnx.load_from_string(model).graph.node], np.abs(found - expected).max()


def last(x):
    return tf.reduce_sum(tf.reshape(x, (-1, 4 * UNITS)), 1, keepdims=True)


@pytest.mark.parametrize("shape", [(-1, UNITS), (-1, 4, UNITS), (-1, 2, 2, UNITS)])
def test_normalisation_over_the_last_axis_is_one_node(shape):
    found, error = converted(lambda x, w: last(normalised(tf.reshape(x, shape), w)))
    assert found.count("LayerNormalization") == 1
    assert not {"ReduceMean", "GlobalAveragePool", "Sqrt"} & set(found)
    assert error < 1e-4


def test_layer_of_keras_is_one_node():
    layer = keras.layers.LayerNormalization(epsilon=1e-6)
    layer.build((None, UNITS))

    def function(x, w):
        values = layer.stateless_call([w["gamma"], w["beta"]], [], tf.reshape(x, (-1, UNITS)))[0]
        return last(values)

    found, error = converted(function)
    assert found.count("LayerNormalization") == 1
    assert error < 1e-4


@pytest.mark.parametrize("axes", [1, [1, 2]])
def test_normalisation_over_other_axes_is_left(axes):
    found, error = converted(lambda x, w: last(normalised(tf.reshape(x, (-1, 4, UNITS)), w, axes)))
    assert "LayerNormalization" not in found
    assert error < 1e-4


def test_mean_that_others_read_stays_beside_the_node():
    def function(x, w):
        rows = tf.reshape(x, (-1, UNITS))
        return last(normalised(rows, w) + tf.reduce_mean(rows, -1, keepdims=True))

    found, error = converted(function)
    assert found.count("LayerNormalization") == 1
    assert found.count("ReduceMean") == 1
    assert error < 1e-4


def test_difference_from_another_tensor_is_left():
    def function(x, w):
        rows = tf.reshape(x, (-1, UNITS))
        return last(normalised(rows, w) - tf.nn.moments(rows * 2.0, -1, keepdims=True)[1])

    def mixed(x, w):
        rows = tf.reshape(x, (-1, UNITS))
        mean, variance = tf.nn.moments(rows, -1, keepdims=True)
        factor = tf.math.rsqrt(variance + 1e-3) * tf.reshape(w["gamma"], (1, UNITS))
        return last(rows * 2.0 * factor + (-mean * factor + tf.reshape(w["beta"], (1, UNITS))))

    assert converted(function)[0].count("LayerNormalization") == 1
    found, error = converted(mixed)
    assert "LayerNormalization" not in found
    assert error < 1e-4


def test_rows_far_from_zero_keep_their_scores():
    far = ROWS + np.float32(1000.0)

    def function(x, w):
        return last(normalised(tf.reshape(x, (-1, UNITS)) + 1000.0, w))

    found, _ = converted(function)
    assert found.count("LayerNormalization") == 1
    graph = dense(function, 4 * UNITS, gamma=(UNITS,), beta=(UNITS,))
    model = with_values(to_onnx(graph)[0], graph.weights)
    scores = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": ROWS})[0]
    rows = far.astype(np.float64).reshape(-1, UNITS)
    centred = rows - rows.mean(1, keepdims=True)
    exact = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-3) * graph.weights["gamma"] + graph.weights["beta"]
    np.testing.assert_allclose(scores[:, 0], exact.reshape(len(far), -1).sum(1), atol=2e-2)
