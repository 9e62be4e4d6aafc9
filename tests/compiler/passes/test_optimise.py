import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.compiler.passes import optimise as passes
from freshet_serving.compiler.passes.flops import PassEffect, counted, flops
from freshet_serving.compiler.passes.graph import Edit, Graph
from freshet_serving.compiler.passes.optimise import optimise
from freshet_serving.models.zoo import deepfm, dlrm
from tests.compiler.passes.graphs import assert_same, dense, ops
from tests.models.zoo.layouts import LAYOUTS


@pytest.mark.parametrize("build", [deepfm.build, dlrm.build], ids=["deepfm", "dlrm"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_zoo_networks_compute_the_same_after_all_passes(build, layout):
    graph = DenseGraph.from_keras(build(layout, (16, 8), seed=1).scores)

    done = optimise(graph)

    assert_same(graph, done.graph, atol=1e-4)
    assert (done.graph.width, done.graph.outputs) == (graph.width, graph.outputs)
    assert list(done.graph.weights) == list(graph.weights)


def test_second_run_of_the_passes_finds_nothing():
    graph = DenseGraph.from_keras(deepfm.build(LAYOUTS["different dims"], (16, 8), seed=1).scores)
    once = optimise(graph)

    again = optimise(once.graph)

    assert again.effects == []
    assert Graph.of_dense(again.graph).to_bytes() == Graph.of_dense(once.graph).to_bytes()


def test_pass_effects_add_up_and_print_one_line_each():
    x = keras.Input((6,))
    h = keras.layers.BatchNormalization()(keras.layers.Dense(4, name="d")(keras.layers.Reshape((6,))(x)))
    graph = DenseGraph.from_keras(keras.Model(x, {"y": keras.layers.Dense(2, name="y")(keras.ops.relu(h))}))

    done = optimise(graph)

    before, after = ops(Graph.of_dense(graph)), ops(Graph.of_dense(done.graph))
    assert sum(effect.nodes for effect in done.effects) == len(before) - len(after)
    assert after == ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]
    assert done.layers == 2
    assert all(str(effect).startswith(f"{effect.name}: {effect.found} changes") for effect in done.effects)
    assert str(PassEffect("p", 1, 0, 0)) == "p: 1 changes"
    assert str(PassEffect("p", 2, -3, 10)) == "p: 2 changes, 3 nodes more, 10 FLOPs a row fewer"
    assert str(PassEffect("p", 2, 3, 1500)) == "p: 2 changes, 3 nodes fewer, 1,500 FLOPs a row fewer"


def _doubled(graph):
    """A pass that computes relu(x) as relu(relu(x)), once."""
    edit = Edit(graph)
    relus = [(name, 0) for name, node in graph.nodes.items() if node.op == "Relu"]
    if len(relus) == 1:
        edit.replace(relus[0], edit.unary("Relu", edit.unary("Relu", graph.producer(relus[0]).inputs[0])))
    return edit.done(), edit.changes


def test_pass_that_adds_work_is_not_applied_and_reported(monkeypatch):
    monkeypatch.setattr(passes, "PASSES", {**passes.PASSES, "doubling": _doubled})
    graph = dense(lambda x, w: tf.nn.relu(x @ w["m"]) @ w["n"], 6, m=(6, 4), n=(4, 2))

    done = optimise(graph)

    assert ops(Graph.of_dense(done.graph)).count("Relu") == 1
    assert [str(e) for e in done.effects] == ["doubling: not applied, 4 FLOPs a row more"]


def test_flops_count_folded_rows_like_separate_ones():
    whole = Graph.of_dense(dense(lambda x, w: tf.tensordot(tf.reshape(x, (-1, 3, 2)), w["m"], 1)[:, 0], 6, m=(2, 5)))

    assert flops(whole) == 2 * 3 * 2 * 5
    assert counted(whole)


def test_graph_with_a_node_of_unknown_size_is_not_counted():
    graph = Graph.of_dense(dense(lambda x, w: x + tf.reduce_sum(2.0 * tf.boolean_mask(x, x > 0.0)), 3))

    assert flops(graph) > 0
    assert not counted(graph)
