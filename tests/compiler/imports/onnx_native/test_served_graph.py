"""The dense graph that an ONNX file becomes: its names, the columns of x, what stays a constant."""

import numpy as np
import onnx
import pytest

from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.served_graph import rewrite
from freshet_serving.compiler.imports.onnx_native.served_lookups import find_lookups
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.native_models import GRU, GRU_WEIGHTS, SCAN, SCAN_WEIGHTS, normal, spelled


def served(path, **columns):
    model = read_native(path)
    return rewrite(model, find_lookups(model), columns)


def test_lookups_and_inputs_lie_side_by_side_in_x(tmp_path):
    graph = served(spelled(tmp_path / "m.onnx", GRU, **GRU_WEIGHTS), score=1)
    assert [(slot.offset, slot.width, len(slot.lookups)) for slot in graph.slots] == [(0, 20, 1), (20, 4, 1)]
    assert graph.width == 24
    assert list(graph.weights) == ["W", "R", "B", "top.weight", "top.bias"]
    assert "Gather" not in graph.operators


def test_one_lookup_that_is_read_twice_fills_its_columns_once(tmp_path):
    text = """g (int64[n] i) => (float[n, 2] y) {
        a = Gather (t, i)
        b = Gather (t, i)
        c = Shrink (a)
        y = Add (b, c)
    }"""
    graph = served(spelled(tmp_path / "m.onnx", text, t=normal(7, 2)), y=2)
    assert [(slot.width, len(slot.lookups)) for slot in graph.slots] == [(2, 2)]


def test_values_inside_bodies_are_renamed_with_those_around_them(tmp_path):
    graph = served(spelled(tmp_path / "m.onnx", SCAN, **SCAN_WEIGHTS), score=4)
    proto = onnx.load_from_string(graph.model)
    (scan,) = [node for node in proto.graph.node if node.op_type == "Scan"]
    (body,) = [attribute.g for attribute in scan.attribute if attribute.name == "body"]
    assert "weights/half" in body.node[0].input
    assert [info.name for info in body.output] == ["graph/next", "graph/seen"]


def test_names_of_the_package_may_be_names_of_the_file(tmp_path):
    text = """g (float[n, 2] y, float[n, 2] "weights/w") => (float[n, 2] x) {
        a = Shrink (y)
        b = Add (a, "weights/w")
        x = Mul (b, w)
    }"""
    graph = served(spelled(tmp_path / "m.onnx", text, w=normal(2)), x=2)
    assert (graph.columns, graph.names) == ({"x_": 2}, {"x_": "x"})
    assert list(graph.weights) == ["w"]


def test_numbers_without_a_name_and_other_types_stay_constants(tmp_path):
    text = """g (float[n, 2] x) => (float[n, 2] y) {
        a = Shrink (x)
        b = Mul (a, "onnx::Mul_7")
        c = Cast <to = 11> (b)
        d = Add (c, wide)
        e = Cast <to = 1> (d)
        y = Add (e, h)
    }"""
    weights = {"onnx::Mul_7": np.float32(2), "h": np.ones(2, np.float32), "wide": np.ones(2)}
    graph = served(spelled(tmp_path / "m.onnx", text, **weights), y=2)
    assert list(graph.weights) == ["h"]


def test_old_operators_get_nodes_of_their_own_version(tmp_path):
    text = """g (float[n, 2] x, float[n, 3] z) => (float[n, 2] y) {
        s = ReduceSum <axes = [1]> (z)
        a = Shrink (x)
        y = Add (a, s)
    }"""
    graph = served(spelled(tmp_path / "m.onnx", text, opset=9), y=2)
    proto = onnx.load_from_string(graph.model)
    assert proto.opset_import[0].version == 9
    assert {len(node.input) for node in proto.graph.node if node.op_type == "Slice"} == {1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(float[n, 2] y) { a = Mul (w, w) y = Shrink (a) }", "depend on an input"),
        ('(float[n, 2] "a/b", float[n, 2] "a_b") { "a/b" = Shrink (x) "a_b" = Abs (x) }', "differ in letters"),
        ("(float[n, 2] y) { a = Shrink (x) b = Mul (a, w) y = Mul (b, W) }", "differs only in case"),
    ],
)
def test_what_has_no_inputs_or_equal_names_is_refused(text, said, tmp_path):
    model = read_native(spelled(tmp_path / "m.onnx", f"g (float[n, 2] x) => {text}", w=normal(2), W=normal(2)))
    with pytest.raises(BadInput, match=said):
        rewrite(model, [], dict.fromkeys(model.outputs, 2))
