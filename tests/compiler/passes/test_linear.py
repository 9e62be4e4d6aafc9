import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes import linear
from tests.compiler.passes.graphs import dense, ops, passed

LAYER = ["MatMul", "BiasAdd", "Relu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.maximum(x @ w["m"] + w["b"], 0.0),
        lambda x, w: tf.nn.relu(tf.reshape(w["b"], (1, 3)) + x @ w["m"]),
        lambda x, w: tf.nn.relu(tf.matmul(x, w["t"], transpose_b=True) + w["b"]),
        lambda x, w: tf.nn.relu(x @ w["m"] - w["b"]),
        lambda x, w: tf.nn.relu(tf.nn.bias_add(x @ w["m"], w["b"]) + w["b"]),
        lambda x, w: tf.nn.relu(x @ w["m"] + w["one"]),
    ],
)
def test_dense_layer_in_any_spelling_is_matmul_bias_activation(function):
    after, found, _, _ = passed(linear.fuse, dense(function, 4, m=(4, 3), t=(3, 4), b=(3,), one=(1,)))

    assert ops(after) == LAYER
    assert found > 0
    assert linear.layers(after) == 1


def test_adjacent_linear_layers_are_merged_when_that_saves_work():
    def low_rank(x, w):
        return tf.nn.bias_add(x @ w["a"], w["b"]) @ w["c"]

    narrow, found, _, flops = passed(linear.fuse, dense(low_rank, 8, a=(8, 6), b=(6,), c=(6, 2)))
    wide, _, _, none = passed(linear.fuse, dense(low_rank, 8, a=(8, 2), b=(2,), c=(2, 9)))

    assert ops(narrow) == ["MatMul", "BiasAdd"]
    assert found > 0
    assert flops == 2 * (8 * 6 + 6 * 2 - 8 * 2) + 6 - 2
    assert ops(wide).count("MatMul") == 2
    assert none == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w["m"]) + x[:, :1],
        lambda x, w: x + w["v"],
        lambda x, w: tf.maximum(x @ w["m"], 0.5),
        lambda x, w: (lambda both: {"a": both, "b": both @ w["n"]})(x @ w["m"]),
        lambda x, w: w["b"] - x @ w["m"],
    ],
)
def test_non_dense_layers_are_left_unchanged(function):
    _, found, nodes, _ = passed(linear.fuse, dense(function, 4, m=(4, 3), n=(3, 3), b=(3,), v=(4,)))

    assert (found, nodes) == (0, 0)


def test_layer_count_counts_fusable_layers():
    def two(x, w):
        h = tf.nn.relu(tf.nn.bias_add(x @ w["m"], w["b"]))
        return tf.sigmoid(h @ w["n"]) + (h @ w["n"])[:, ::-1]

    after, _, _, _ = passed(linear.fuse, dense(two, 4, m=(4, 3), n=(3, 3), b=(3,)))

    assert linear.layers(after) == 2
