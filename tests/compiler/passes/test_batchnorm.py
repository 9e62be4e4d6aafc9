import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.passes import batchnorm
from freshet_serving.compiler.passes.graph import Graph
from freshet_serving.compiler.passes.optimise import optimise
from tests.compiler.passes.graphs import assert_same, dense, ops, passed


def normalised(order):
    x = h = keras.Input((6,))
    for kind in order:
        if kind == "norm":
            layer = keras.layers.BatchNormalization(name=f"norm{len(order)}")
            h = layer(h)
            layer.moving_mean.assign(np.linspace(-1, 1, h.shape[1]))
            layer.moving_variance.assign(np.linspace(0.5, 2, h.shape[1]))
        else:
            h = keras.layers.Dense(5, kind or None)(h)
    return DenseGraph.from_keras(keras.Model(x, {"y": keras.layers.Dense(2, name="out")(h)}))


@pytest.mark.parametrize(
    ("order", "left"),
    [
        (["", "norm", "relu"], ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]),
        (["norm", "relu"], ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]),
        (["relu", "norm", "relu"], ["MatMul", "BiasAdd", "Relu"] * 2 + ["MatMul", "BiasAdd"]),
        (["relu", "norm"], ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]),
    ],
    ids=lambda value: "-".join(value),
)
def test_normalisation_next_to_a_layer_is_folded_completely(order, left):
    graph = normalised(order)

    done = optimise(graph)

    assert ops(Graph.of_dense(done.graph)) == left
    assert_same(graph, done.graph)
    assert any(effect.name == "batch norm" for effect in done.effects)


def test_scales_in_every_spelling_are_folded_and_counted():
    def scaled(x, w):
        return ((x * w["k"]) @ w["m"]) * w["s"] / w["one"]

    after, found, nodes, flops = passed(batchnorm.fold, dense(scaled, 4, k=(4,), m=(4, 3), s=(1, 3), one=(1,)))

    assert ops(after) == ["MatMul"]
    assert found >= 3
    assert (nodes, flops) == (3, 4 + 3 + 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: tf.nn.relu(x @ w["m"]) * w["s"],
        lambda x, w: (x * x) @ w["m"],
        lambda x, w: (lambda both: {"a": both @ w["m"], "b": both})(x * w["k"]),
        lambda x, w: w["s"] / (x @ w["m"]),
        lambda x, w: (w["k"] - x) @ w["m"],
        lambda x, w: (lambda both: {"a": both, "b": both * w["s"]})(x @ w["m"]),
    ],
)
def test_shared_or_unsupported_scales_are_left_unchanged(function):
    _, found, nodes, _ = passed(batchnorm.fold, dense(function, 4, k=(4,), m=(4, 3), s=(3,)))

    assert (found, nodes) == (0, 0)
