import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from compiler.frameworks import tf
from compiler.passes.graph import Graph
from compiler.passes.optimise import optimise
from compiler.passes.weights import split_weights
from tests.compiler.passes.graphs import dense, ops, rows

pytestmark = pytest.mark.tensorflow


def layer(x, w):
    normalised = (x @ w["m"]) * (w["s"] * tf.math.rsqrt(w["v"] + 1.5)) + w["t"]
    return tf.nn.relu(normalised) @ w["n"]


SHAPES = dict(m=(5, 3), s=(3,), v=(3,), t=(3,), n=(3, 2))


def test_what_follows_from_weights_is_prepared_and_no_batch_computes_it():
    graph = dense(lambda x, w: layer(x, {**w, "v": tf.square(w["v"])}), 5, **SHAPES)

    split = split_weights(optimise(graph).graph)

    found = Graph.of_dense(split.graph)
    assert {node.op for n, node in found.nodes.items() if n not in found.varying} <= {"Placeholder", "Const"}
    assert ops(found) == ["MatMul", "BiasAdd", "Relu", "MatMul"]
    assert set(split.graph.weights) == {*split.derived, "n", "t"}
    x = rows(graph)
    for weights in (graph.weights, {n: w * 1.5 - 0.2 for n, w in graph.weights.items()}):
        got = split.graph.run(x, split.weights(weights))["y"]
        np.testing.assert_allclose(got, graph.run(x, weights)["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(split.graph.run(x)["y"], split.graph.run(x, split.weights(graph.weights))["y"])


def test_prepare_is_a_function_of_all_weights_that_a_backend_can_lower():
    graph = dense(layer, 5, **SHAPES)

    split = split_weights(graph)

    (specs,) = split.prepare.input_signature
    assert {name: tuple(spec.shape) for name, spec in specs.items()} == SHAPES
    made = split.prepare.get_concrete_function().structured_outputs
    assert list(made) == split.derived


def test_a_graph_that_reads_its_weights_as_they_are_has_nothing_to_prepare():
    graph = dense(lambda x, w: tf.nn.relu(x @ w["m"]) * 2.0, 5, m=(5, 3), unread=(4,))

    split = split_weights(graph)

    assert split.derived == []
    assert list(split.graph.weights) == ["m"]
    np.testing.assert_array_equal(split.graph.run(rows(graph))["y"], graph.run(rows(graph))["y"])


def test_names_of_derived_weights_never_meet_the_models_own():
    graph = dense(lambda x, w: x @ (w["prepared/0000"] * 2.0), 5, **{"prepared/0000": (5, 3)})

    split = split_weights(graph)

    assert split.derived == ["_prepared/0000"]
    assert list(split.graph.weights) == ["_prepared/0000"]
