"""Outputs of strings of ONNX graphs are computed as positions, and replies hold ONNX Runtime's own strings."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.compiler.imports.onnx_native.string_outputs import number_strings
from freshet_serving.processor.repository.version import VersionReader
from tests.compiler.imports.onnx_native.native_models import ML, RANDOM, forest, own_scores
from tests.compiler.imports.replies import declared_replies

ROWS, COLUMNS = 64, 5
NAMES = ["cat", "dog", "\u00e9mu"]
ENCODED = {"keys_int64s": [0, 1, 2], "values_strings": ["north", "south", "east"], "default_string": "none"}


def linear(names):
    """A classifier as scikit-learn's converter writes it; its labels are strings."""
    weights = RANDOM.standard_normal(len(names) * COLUMNS).round(3).tolist()
    node = helper.make_node(
        "LinearClassifier", ["input"], ["label", "scores"], domain=ML, coefficients=weights,
        intercepts=[0.1] * len(names), classlabels_strings=names, post_transform="SOFTMAX",
    )  # fmt: skip
    return [node], []


def trees(names):
    """Boosted trees of one score, for two labels."""
    attributes, leaves, weights = forest(10, 3, COLUMNS, seed=2)
    classes = {f"class_{name}": values for name, values in leaves.items()} | {"class_weights": weights}
    node = helper.make_node(
        "TreeEnsembleClassifier", ["input"], ["label", "scores"], domain=ML, post_transform="LOGISTIC",
        classlabels_strings=names[:2], **attributes, **classes,
    )  # fmt: skip
    return [node], []


def gathered(names):
    """Labels taken at the place of the best score."""
    nodes = [
        helper.make_node("ArgMax", ["input"], ["best"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["classes", "best"], ["row"], domain=ML),
        helper.make_node("Cast", ["row"], ["text"], to=TensorProto.STRING),
        helper.make_node("Reshape", ["text", "flat"], ["label"]),
        helper.make_node("Normalizer", ["input"], ["scores"], domain=ML),
    ]
    given = [helper.make_tensor("classes", TensorProto.STRING, [5], [n.encode() for n in (*names, "a", "b")])]
    return nodes, [*given, helper.make_tensor("flat", TensorProto.INT64, [1], [-1])]


def encoded(names):
    """A whole number that becomes a word; others become the default one."""
    nodes = [
        helper.make_node("ArgMax", ["input"], ["best"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["best"], ["label"], domain=ML, **ENCODED),
        helper.make_node("Normalizer", ["input"], ["scores"], domain=ML),
    ]
    return nodes, []


def written(path, nodes, weights):
    given = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", COLUMNS])]
    made = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["N"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", None]),
    ]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


@pytest.mark.parametrize("build", [linear, trees, gathered, encoded])
def test_labels_equal_those_of_onnx_runtime(build, tmp_path):
    path = written(tmp_path / "model.onnx", *build(NAMES))
    imported = import_model(path, tmp_path / "repository", "labels", options=ImportOptions(buckets=(64,)))
    outputs = {o.name: o for o in VersionReader(imported.folder).manifest.outputs}
    assert (outputs["label"].dtype, outputs["label"].dims) == ("string", [])
    given = RANDOM.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    own = own_scores(path, {"input": given})
    found = declared_replies(tmp_path / "repository", "labels", {"input": given})
    labels = found["label"].ravel().tolist()
    assert labels == own["label"].tolist()
    assert len(set(labels)) > 1
    np.testing.assert_allclose(found["scores"], own["scores"], rtol=1e-5, atol=1e-5)


def test_strings_that_follow_from_values_are_left_alone():
    nodes = [helper.make_node("Cast", ["input"], ["label"], to=TensorProto.STRING)]
    given = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N"])]
    made = [helper.make_tensor_value_info("label", TensorProto.STRING, ["N"])]
    proto = helper.make_model(helper.make_graph(nodes, "g", given, made))
    before = proto.SerializeToString()
    assert number_strings(proto) == {}
    assert proto.SerializeToString() == before


def test_labels_that_another_node_reads_as_strings_stay_strings():
    nodes, _ = linear(NAMES)
    nodes.append(
        helper.make_node("LabelEncoder", ["label"], ["other"], domain=ML, keys_strings=NAMES, values_int64s=[3, 4, 5])
    )
    given = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", COLUMNS])]
    made = [helper.make_tensor_value_info("label", TensorProto.STRING, ["N"])]
    assert number_strings(helper.make_model(helper.make_graph(nodes, "g", given, made))) == {}
