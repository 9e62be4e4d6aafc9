"""A dense graph from somebody else computes numbers and does nothing else, or it is not even loaded."""

import numpy as np
import pytest

from freshet_serving.compiler.dense.dense_graph import DenseGraph, signature
from freshet_serving.compiler.dense.op_allowlist import check_allowed_ops
from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.errors import BadInput, Corrupt
from tests.compiler.imports.foreign import without_deprecations

WEIGHTS = {"w": np.ones((2, 1), np.float32)}


INPUTS = {"x": (None, 2)}


def saved(folder, compute):
    """A dense graph's SavedModel that computes this of x."""
    module = tf.Module()
    module.dense = tf.function(
        lambda inputs, weights: compute(inputs["x"], weights),
        input_signature=signature(INPUTS, WEIGHTS),
        autograph=False,
    )
    module.examples = {"x": tf.Variable(np.zeros((1, 2), np.float32), trainable=False)}
    with without_deprecations():
        tf.saved_model.save(module, str(folder))
    return folder


def test_graph_with_branches_and_loops_is_loaded(tmp_path):
    def compute(x, weights):
        score = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ weights["w"], lambda: x @ weights["w"] * 2.0)
        tf.debugging.assert_all_finite(score, "finite")
        return {"score": tf.while_loop(lambda n, s: n < 2, lambda n, s: (n + 1, s + 1.0), (0, score))[1]}

    graph = DenseGraph.load(saved(tmp_path / "graph", compute), WEIGHTS)
    assert graph.run({"x": np.ones((1, 2), np.float32)})["score"].tolist() == [[4.0]]


def read(x):
    return tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), tf.float32)


def write(x):
    tf.io.write_file("/nowhere/written", "text")
    return 0.0


HARM = {
    "ReadFile": read,
    "WriteFile": write,
    "EagerPyFunc": lambda x: tf.reshape(tf.py_function(lambda v: v, [x], tf.float32), [-1, 2])[:, :1],
    "PyFuncStateless": lambda x: tf.reshape(tf.numpy_function(lambda v: v, [x], tf.float32, stateful=False), [-1, 2])[
        :, :1
    ],
    "MatchingFiles": lambda x: tf.cast(tf.size(tf.io.matching_files("/etc/*")), tf.float32),
    "RestoreV2": lambda x: tf.raw_ops.RestoreV2(
        prefix="/elsewhere", tensor_names=["w"], shape_and_slices=[""], dtypes=[tf.float32]
    )[0],
}


@pytest.mark.parametrize("name", HARM)
def test_dangerous_operations_are_refused_by_name_at_any_depth(tmp_path, name):
    def compute(x, weights):
        score = x @ weights["w"]
        return {"score": tf.cond(tf.reduce_sum(x) > 9, lambda: score + HARM[name](x), lambda: score)}

    with pytest.raises(BadInput, match=f"graph: operation {name} is not allowed in a dense graph"):
        DenseGraph.load(saved(tmp_path / "graph", compute), WEIGHTS)


def test_functions_besides_the_main_one_are_checked_too(tmp_path):
    module = tf.Module()
    module.dense = tf.function(
        lambda inputs, weights: {"score": inputs["x"] @ weights["w"]}, input_signature=signature(INPUTS, WEIGHTS)
    )
    module.more = tf.function(lambda: tf.io.read_file("/etc/hostname"), input_signature=[])
    with without_deprecations():
        tf.saved_model.save(module, str(tmp_path))
    with pytest.raises(BadInput, match="operation ReadFile"):
        check_allowed_ops(tmp_path)


def test_path_that_is_not_a_regular_file_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").mkdir()
    with pytest.raises(Corrupt, match="expected a regular file, got a folder"):
        check_allowed_ops(tmp_path)
