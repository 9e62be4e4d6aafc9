"""Translated ONNX graphs whose sizes follow from numbers of a request are refused before they run."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.feeds import DENSE, PADDED, FeedSpec
from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.compiler.imports.stage_sizes import sizing_inputs
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.hostile_models import HOSTILE


@pytest.mark.parametrize("name", ["constant_of_shape_by_value", "expand_by_value"])
def test_size_from_values_is_refused_in_a_stage(name, tmp_path):
    with pytest.raises(BadInput, match="expected a size that follows from shapes, got one that follows from numbers"):
        import_model(HOSTILE[name](tmp_path / "model.onnx"), tmp_path / "repository", "hostile")


def graph_of(build):
    """A GraphDef with inputs as a stage has them, and how they are fed."""
    graph = tf.Graph()
    with graph.as_default():
        words = tf.compat.v1.placeholder(tf.string, [None], "input/words")
        lengths = tf.compat.v1.placeholder(tf.int64, [None], "input/lengths")
        values = tf.compat.v1.placeholder(tf.float32, [None, None], "input/values")
        build(words, lengths, values)
    fed = [
        FeedSpec("words", DENSE, np.dtype(object)),
        FeedSpec("lengths", DENSE, np.dtype(np.int64)),
        FeedSpec("values", PADDED, np.dtype(np.float32)),
    ]
    return graph.as_graph_def().SerializeToString(), fed


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda words, lengths, values: tf.sequence_mask(lengths), ["lengths"]),
        (lambda words, lengths, values: tf.strings.split(words).to_tensor(), ["words"]),
        (lambda words, lengths, values: tf.fill([tf.reduce_max(lengths + 1)], 1.0), ["lengths"]),
        (lambda words, lengths, values: tf.function(tf.sequence_mask)(lengths), ["lengths"]),
        (lambda words, lengths, values: tf.sequence_mask(lengths, tf.shape(values)[1]), []),
        (lambda words, lengths, values: (tf.strings.length(words), tf.one_hot(lengths, 8)), []),
    ],
    ids=["mask", "split", "fill", "function", "mask of a shape", "one hot of constant depth"],
)
def test_inputs_whose_values_say_sizes_are_told(build, names):
    assert sizing_inputs(*graph_of(build)) == names
