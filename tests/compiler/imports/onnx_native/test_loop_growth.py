"""Loops whose carried tensor doubles are refused, cells of recurrent networks are not."""

import pytest
from onnx import parser

from freshet_serving.compiler.imports.onnx_native.loop_growth import check_loops
from freshet_serving.processor.errors import BadInput


def checked(step):
    body = (
        f"<body = b (int64 i, bool c, float[r, q] v) => (bool again, float[r, p] w) {{ again = Less (v, v) {step} }}>"
    )
    text = f"g (float[n, m] x, float[m, m] t, bool go) => (y) {{ s = Size (x) y = Loop {body} (s, go, x) }}"
    check_loops(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))


@pytest.mark.parametrize(
    "step",
    [
        "w = Concat <axis = 1> (v, v)",
        "u = Relu (v) w = Concat <axis = 0> (u, v)",
        "w = Tile (v, t)",
        "u = Concat <axis = 1> (v, v) a = Add (u, u) w = Neg (a)",
    ],
)
def test_carried_tensor_that_doubles_is_refused(step):
    with pytest.raises(BadInput, match="expected carried tensors that keep their size, got 'w'"):
        checked(step)


@pytest.mark.parametrize(
    "step",
    [
        "w = Add (v, v)",
        "u = Concat <axis = 1> (v, x) w = MatMul (u, t)",
        "u = Concat <axis = 1> (v, v) m = ReduceMax <axes = [1]> (u) w = Add (v, m)",
        "u = Tile (x, t) w = Identity (v)",
    ],
)
def test_carried_tensor_that_keeps_its_size_is_served(step):
    checked(step)
