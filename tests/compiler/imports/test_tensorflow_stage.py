"""The stage's runtime: what it refuses to load, and what it makes of what TensorFlow puts out."""

import numpy as np
import pytest

from freshet_serving.compiler.frameworks import tf
from freshet_serving.compiler.imports.tensorflow_stage import load
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.package.manifest_entries import Input

IDS = [Input("ids", "int64")]


def graph(build):
    with tf.Graph().as_default() as made:
        build(tf.compat.v1.placeholder(tf.int64, [None], name="input/ids"))
    return made.as_graph_def().SerializeToString()


def test_columns_and_ragged_rows_match_the_feature_layout():
    def build(ids):
        tf.identity(tf.stack([ids, ids + 1], 1) > 2, name="output/pairs")
        tf.strings.as_string(ids, name="output/words")
        tf.constant([7, 8, 9], name="output/list")
        tf.constant([2, 0, 2], name="output/list/segments")

    outputs = [Input("pairs", "float32", columns=2), Input("words", "string"), Input("list", "int64", ragged=True)]
    stage = load(graph(build), IDS, outputs)
    got = stage.run({"ids": np.array([1, 2, 3])}, 3)

    assert got["pairs"].tolist() == [[0, 0], [0, 1], [1, 1]]
    assert got["pairs"].dtype == np.float32
    assert isinstance(got["words"], Strings)
    assert got["words"].tolist() == [b"1", b"2", b"3"]
    assert isinstance(got["list"], Ragged)
    assert (got["list"].values.tolist(), got["list"].row_splits.tolist()) == ([8, 7, 9], [0, 1, 1, 3])


def test_dangerous_operations_are_refused_before_loading():
    def reads(ids):
        tf.io.read_file(tf.constant("/etc/passwd"), name="output/file")

    with pytest.raises(BadInput, match="stage: operation ReadFile is not allowed"):
        load(graph(reads), IDS, [Input("file", "string")])

    hidden = tf.compat.v1.GraphDef.FromString(graph(lambda ids: tf.identity(ids, name="output/a")))
    function = hidden.library.function.add()
    function.signature.name = "quiet"
    function.node_def.add(name="run", op="PyFunc")
    with pytest.raises(BadInput, match="operation PyFunc is not allowed"):
        load(hidden.SerializeToString(), IDS, [Input("a", "int64")])


def test_malformed_graph_or_missing_output_is_refused():
    with pytest.raises(Corrupt, match="not a TensorFlow graph"):
        load(b"\xff\xff\xff", IDS, [])
    with pytest.raises(Corrupt, match="an output that the manifest names is missing"):
        load(graph(lambda ids: tf.identity(ids, name="output/a")), IDS, [Input("b", "int64")])


def test_inputs_refused_by_tensorflow_are_bad_input_in_one_line():
    def build(ids):
        tf.gather(tf.constant([1.0, 2.0]), ids, name="output/rows")

    stage = load(graph(build), IDS, [Input("rows", "float32")])
    with pytest.raises(BadInput, match="the model refuses these inputs: indices") as caught:
        stage.run({"ids": np.array([5])}, 1)
    assert "node" not in str(caught.value)


def test_stage_that_loses_rows_is_reported():
    stage = load(graph(lambda ids: tf.identity(ids[:1], name="output/a")), IDS, [Input("a", "int64")])
    with pytest.raises(BadInput, match="returned 1 rows of 'a' for 3 rows"):
        stage.run({"ids": np.array([1, 2, 3])}, 3)
