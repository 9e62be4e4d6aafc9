import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from compiler.dense.dense_graph import DenseGraph
from compiler.frameworks import keras
from compiler.passes.graph import Graph
from compiler.passes.optimise import optimise
from models.zoo import deepfm, dlrm
from tests.compiler.passes.graphs import assert_same, ops
from tests.models.zoo.layouts import LAYOUTS

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("build", [deepfm.build, dlrm.build], ids=["deepfm", "dlrm"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_zoo_computes_the_same_after_all_passes(build, layout):
    graph = DenseGraph.from_keras(build(layout, (16, 8), seed=1).scores)

    done = optimise(graph)

    assert_same(graph, done.graph, atol=1e-4)
    assert (done.graph.width, done.graph.outputs) == (graph.width, graph.outputs)
    assert list(done.graph.weights) == list(graph.weights)


def test_passes_over_what_they_left_find_nothing():
    graph = DenseGraph.from_keras(deepfm.build(LAYOUTS["different dims"], (16, 8), seed=1).scores)
    once = optimise(graph)

    again = optimise(once.graph)

    assert again.effects == []
    assert Graph.of_dense(again.graph).to_bytes() == Graph.of_dense(once.graph).to_bytes()


def test_effects_add_up_to_what_a_batch_is_spared_and_read_as_a_line_each():
    x = keras.Input((6,))
    h = keras.layers.BatchNormalization()(keras.layers.Dense(4, name="d")(keras.layers.Reshape((6,))(x)))
    graph = DenseGraph.from_keras(keras.Model(x, {"y": keras.layers.Dense(2, name="y")(keras.ops.relu(h))}))

    done = optimise(graph)

    before, after = ops(Graph.of_dense(graph)), ops(Graph.of_dense(done.graph))
    assert sum(effect.nodes for effect in done.effects) == len(before) - len(after)
    assert after == ["MatMul", "BiasAdd", "Relu", "MatMul", "BiasAdd"]
    assert done.layers == 2
    assert all(str(effect).startswith(f"{effect.name}: {effect.found} changes") for effect in done.effects)
