import pytest

from freshet_serving.compiler.backends.xla import AheadGraph, stablehlo
from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.processor.errors import BadInput
from tests.compiler.backends.test_base import built


def test_graph_that_xla_cannot_compile_gives_a_one_line_error(tmp_path):
    pytest.importorskip("jaxlib", reason="the xla extra is not installed")
    x = keras.Input((4,))

    class Odd(keras.layers.Layer):
        def call(self, inputs):
            text = tf.strings.as_string(inputs)
            return tf.reshape(tf.strings.to_number(text), (-1, 4))

    graph = DenseGraph.from_keras(keras.Model(x, Odd()(x)))
    with pytest.raises(BadInput, match="dense graph: cannot be compiled for backend xla"):
        built(graph, tmp_path, "xla")


def test_stablehlo_of_other_scores_is_refused_for_absent_gpus():
    pytest.importorskip("jaxlib", reason="the xla extra is not installed")
    layer = keras.layers.Dense(3)
    x = keras.Input((4,))
    graph = DenseGraph.from_keras(keras.Model(x, layer(x)))
    twice = DenseGraph.from_keras(keras.Model(x, 2 * layer(x)))
    ahead = AheadGraph(graph, "cuda-sm_90")
    assert ahead.prove(8, stablehlo(graph, 8)) <= 1e-5
    with pytest.raises(BadInput, match=r"^StableHLO b8: output '.*' differs by .* from TensorFlow's$"):
        ahead.prove(8, stablehlo(twice, 8))
