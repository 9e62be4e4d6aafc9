import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.passes.graph import Edit, Graph
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.models.zoo import dlrm
from freshet_serving.processor.errors import BadInput
from tests.compiler.passes.graphs import assert_same, dense, ops, rows
from tests.models.zoo.layouts import make_layout


def network(seed=1):
    return DenseGraph.from_keras(dlrm.build(make_layout(8, 8, 8, 0, 0), (16, 8), seed=seed).scores)


def test_graph_round_trip_is_the_same_function():
    graph = network()

    assert_same(graph, Graph.of_dense(graph).to_dense(graph.weights))


def test_equal_graphs_have_identical_bytes(tmp_path):
    graph = network()
    graph.save(tmp_path / "graph")
    read = DenseGraph.load(tmp_path / "graph", graph.weights)
    again = Graph.of_dense(graph).to_dense(graph.weights)

    made = {Graph.of_dense(g).to_bytes() for g in (graph, network(seed=2), read, again)}

    assert len(made) == 1
    assert Graph.of_dense(dense(lambda x, w: x @ w["a"], 3, a=(3, 2))).to_bytes() not in made


@pytest.mark.long
def test_other_process_gives_identical_bytes():
    code = (
        "import sys, hashlib; from tests.compiler.passes.test_graph import *;"
        "sys.stdout.write(hashlib.sha256(optimised()).hexdigest())"
    )
    root = Path(__file__).parents[3]
    other = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    network()

    assert other.stdout == hashlib.sha256(optimised()).hexdigest()


def optimised():
    return Graph.of_dense(optimise(network()).graph).to_bytes()


def test_nodes_that_no_output_needs_are_absent():
    graph = dense(lambda x, w: (tf.nn.softmax(x @ w["a"]), x @ w["b"])[1], 4, a=(4, 9), b=(4, 2))

    assert ops(Graph.of_dense(graph)) == ["MatMul"]


def test_calls_are_inlined():
    inner = tf.function(lambda x, w: tf.nn.relu(x @ w), autograph=False)
    graph = dense(lambda x, w: inner(x, w["a"]) + inner(x, w["b"]), 4, a=(4, 3), b=(4, 3))

    found = Graph.of_dense(graph)

    assert {"MatMul", "Relu"} <= set(ops(found)) <= {"MatMul", "Relu", "AddV2", "Identity"}
    assert_same(graph, found.to_dense(graph.weights))


def test_branches_stay_with_their_functions():
    def branching(x, w):
        return tf.cond(tf.reduce_sum(w["a"]) > 0, lambda: x @ w["a"], lambda: x @ w["a"] * 2.0)

    graph = dense(branching, 4, a=(4, 3))

    assert_same(graph, Graph.of_dense(graph).to_dense(graph.weights))


def test_function_with_its_own_state_is_refused():
    variable = tf.Variable(np.ones((4, 2), np.float32))
    graph = dense(lambda x, w: x @ variable, 4)

    with pytest.raises(BadInput, match="of its input and weights alone"):
        Graph.of_dense(graph)


def test_row_dependence_is_detected():
    def shapes(x, w):
        flat = tf.reshape(x, (tf.shape(x)[0], 2, 3))
        return tf.reshape(tf.tensordot(flat, w["a"] * 2.0, 1), (-1, 8))

    graph = Graph.of_dense(dense(shapes, 6, a=(3, 4)))

    assert graph.shape(graph.outputs["y"]) == (None, 8)
    static = {graph.shape((n, 0)) for n in graph.nodes if graph.nodes[n].op == "Reshape"}
    assert (None, 2, 3) in static
    free = [n for n, node in graph.nodes.items() if node.op == "Mul"]
    assert all(graph.free((n, 0)) and n not in graph.fixed for n in free)


def test_edit_replaces_tensors_for_all_readers():
    graph = Graph.of_dense(dense(lambda x, w: x @ w["b"], 4, b=(4, 2)))
    edit = Edit(graph)
    old = next(node.inputs[1] for node in graph.nodes.values() if node.op == "MatMul")
    edit.replace(old, edit.constant(np.ones((4, 2))))

    changed = edit.done()

    made = changed.to_dense({"b": np.zeros((4, 2), np.float32)})
    x = rows(made)
    np.testing.assert_allclose(made.run({"x": x})["y"], x @ np.ones((4, 2), np.float32), rtol=1e-6, atol=1e-6)


def test_edit_without_replacements_returns_the_graph():
    graph = Graph.of_dense(network())
    edit = Edit(graph)
    edit.constant([1.0])

    assert edit.done() is graph


def test_equal_graphs_are_inferred_once(monkeypatch):
    first, second = Graph.of_dense(network(seed=3)), Graph.of_dense(network(seed=4))
    shapes = {name: first.shape((name, 0)) for name in first.nodes}
    monkeypatch.setattr(tf.graph_util, "import_graph_def", lambda *_, **__: pytest.fail("inferred again"))

    assert {name: second.shape((name, 0)) for name in second.nodes} == shapes
