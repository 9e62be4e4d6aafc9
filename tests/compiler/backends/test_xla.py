import pytest

pytest.importorskip("tensorflow", reason="compiling needs the train extra")

from freshet_serving.compiler.dense.dense_graph import DenseGraph
from freshet_serving.compiler.frameworks import keras, tf
from freshet_serving.processor.errors import BadInput
from tests.compiler.backends.test_base import built

pytestmark = pytest.mark.tensorflow


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
