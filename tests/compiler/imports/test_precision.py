"""Tolerances follow the least precise type of a model."""

import numpy as np
import onnx
import pytest
from onnx import parser

from freshet_serving.compiler.imports.onnx_graph.onnx_reader import types_held
from freshet_serving.compiler.imports.precision import Precision

ONE = np.array([0.5, 1.0], np.float32)


def precision_of(text):
    return Precision.of(types_held(parser.parse_graph(text)))


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("g (float[n] x) => (float[n] y) { y = Neg (x) }", ""),
        ("g (float16[n] x) => (float[n] y) { y = Cast <to = 1> (x) }", "float16"),
        ("g (float[n] x) => (float16[n] y) { y = Cast <to = 10> (x) }", "float16"),
        ("g (float[n] x) => (float[n] y) { a = Cast <to = 16> (x) y = Cast <to = 1> (a) }", "bfloat16"),
    ],
)
def test_precision_of_a_graph_is_that_of_its_least_precise_tensor(text, dtype):
    assert precision_of(text) == Precision(dtype)


def test_half_weights_make_a_graph_half():
    graph = parser.parse_graph("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float16), "w"))
    assert Precision.of(types_held(graph)) == Precision("float16")


def test_last_place_of_a_half_is_no_difference():
    assert Precision("float16").agree(ONE + 2**-11, ONE, 1e-5, 1e-5)
    assert Precision("bfloat16").agree(ONE + 2**-8, ONE, 1e-5, 1e-5)
    assert not Precision().agree(ONE + 2**-11, ONE, 1e-5, 1e-5)
    assert not Precision("float16").agree(ONE + 0.1, ONE, 1e-5, 1e-5)


def test_advice_is_to_export_in_float32():
    assert "float32" in Precision("float16").advice
    assert Precision().advice == ""
