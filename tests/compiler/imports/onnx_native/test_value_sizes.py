"""Graphs in which numbers of a request say how much is computed are refused, others are not."""

import numpy as np
import pytest
from onnx import parser

from freshet_serving.compiler.imports.importing import import_model
from freshet_serving.compiler.imports.onnx_native.value_sizes import check_sizes
from freshet_serving.processor.errors import BadInput, TooLarge
from tests.compiler.imports.onnx_native.native_models import spelled

CONSTANTS = """
    zero = Constant <value: tensor = int64 {0}> ()
    ten = Constant <value: tensor = int64 {10}> ()
    endless = Constant <value: tensor = int64 {9223372036854775807}> ()
    go = Constant <value: tensor = bool {1}> ()
    one = Constant <value: tensor = int64[1] {1}> ()
"""
BODY = "<body = b (int64 i, bool c, float[r, 4] v) => (bool again, float[r, 4] w) { w = Add (v, v) again = %s }>"


def checked(steps):
    text = f"g (float[n, 4] x, int64[n] k) => (y) {{ {CONSTANTS} {steps} }}"
    check_sizes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}').graph)


@pytest.mark.parametrize(
    "steps",
    [
        "m = ReduceMax <keepdims: int = 0> (k) y = Range (zero, m, ten)",
        "y = ConstantOfShape (k)",
        "s = Shape (x) t = Add (s, k) y = Expand (x, t)",
        "y = Tile (x, k)",
        "f = Cast <to = 7> (x) m = ReduceMax (f) p = Reshape (m, one) y = Pad (x, p)",
        "d = Squeeze (k, zero) y = OneHot (k, d, one)",
        "d = Squeeze (k, zero) y = Loop" + BODY % "Identity (c)" + " (d, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + " (endless, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + ' ("", go, x)',
        "y = If (go) <then_branch = a () => (p) { p = Tile (x, k) }, else_branch = b () => (q) { q = Abs (x) }>",
        "y = Loop <body = b (int64 i, bool c, int64[r] v) => (bool again, int64[r] w) "
        "{ again = Identity (c) t = Cast <to = 7> (x) u = Tile (v, t) w = Identity (u) }> (ten, go, one)",
    ],
)
def test_size_from_values_is_refused(steps):
    with pytest.raises(BadInput, match="follows from shapes, got one that follows from numbers of the request"):
        checked(steps)


@pytest.mark.parametrize(
    "steps",
    [
        "s = Shape (x) y = Expand (k, s)",
        "s = Shape (x) n = Gather (s, zero) y = Range (zero, n, ten)",
        "y = Range (zero, ten, ten)",
        "y = Compress (x, k)",
        "y = Loop" + BODY % "Identity (c)" + " (ten, go, x)",
        "y = Loop" + BODY % "Less (v, v)" + " (ten, go, x)",
        "s = Size (x) y = Loop" + BODY % "Less (v, v)" + " (s, go, x)",
        "y = Gather (x, k)",
    ],
)
def test_size_from_shapes_and_constants_is_taken(steps):
    checked(steps)


@pytest.mark.parametrize(
    "steps",
    [
        "huge = Constant <value_ints = [1000000, 1000000]> () y = ConstantOfShape (huge)",
        "huge = Constant <value_ints = [1000000, 1000000]> () y = Expand (one, huge)",
        "huge = Constant <value_ints = [100000000]> () y = Tile (one, huge)",
        "step = Constant <value_int = 1> () y = Range (zero, endless, step)",
        "huge = Constant <value_ints = [0, 0, 0, 100000000]> () y = Pad (x, huge)",
        "y = RandomNormal <shape = [100000, 100000]> ()",
    ],
)
def test_huge_constant_size_is_refused_before_anything_is_allocated(steps):
    with pytest.raises(TooLarge, match=r"numbers from constants, got [0-9]+"):
        checked(steps)


def test_import_says_which_operator_it_is(tmp_path):
    text = """g (float[n, 4] x, int64[n] k) => (float[n, 4] y) {
        most = ReduceMax <keepdims: int = 0> (k)
        all = Range (zero, most, one)
        sum = ReduceSum <keepdims: int = 0> (all)
        f = Cast <to = 1> (sum)
        a = Shrink (x)
        y = Add (a, f)
    }"""
    path = spelled(tmp_path / "m.onnx", text, zero=np.array(0), one=np.array(1))
    with pytest.raises(BadInput, match="graph: Range '': expected a size that follows from shapes"):
        import_model(path, tmp_path / "models", "m")
