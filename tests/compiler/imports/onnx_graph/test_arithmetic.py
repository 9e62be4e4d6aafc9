"""Operators that work number by number, and reductions, give what ONNX Runtime gives."""

import numpy as np
import pytest

from freshet_serving.compiler.imports.ops import words
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_graph.spelled import check_same, made, reference, translated

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((5, 3)).astype(np.float32)
Y = RANDOM.standard_normal((5, 3)).astype(np.float32)
CUBE = RANDOM.standard_normal((5, 3, 4)).astype(np.float32)
WHOLE = RANDOM.integers(-9, 9, (5, 3))
OTHER = np.where(RANDOM.integers(-4, 4, (5, 3)) == 0, 1, RANDOM.integers(1, 4, (5, 3)))
TRUE, MASK = X > 0, Y > 0
PLAIN = sorted(
    words(
        "Abs Exp Tanh Sigmoid Floor Ceil Sign Sin Cos Tan Sinh Cosh Atan Round Erf Relu Softplus Softsign Neg "
        "Reciprocal Identity IsNaN IsInf Elu Selu LeakyRelu ThresholdedRelu HardSigmoid"
    )
)


def check(tmp_path, op, inputs, **more):
    check_same(made(tmp_path / "m.onnx", op, inputs, **more), inputs)


@pytest.mark.parametrize("op", PLAIN)
@pytest.mark.parametrize("opset", [11, 21])
def test_unary_operators_equal_the_reference(op, opset, tmp_path):
    check(tmp_path, op, {"x": X}, opset=opset)


@pytest.mark.parametrize(
    ("op", "x", "opset", "attributes"),
    [
        ("Sqrt", np.abs(X), 13, {}),
        ("Log", np.abs(X), 13, {}),
        ("Asin", np.tanh(X), 13, {}),
        ("Acos", np.tanh(X), 13, {}),
        ("Not", TRUE, 13, {}),
        ("HardSwish", X, 14, {}),
        ("Mish", X, 18, {}),
        ("Gelu", X, 20, {}),
        ("Gelu", X, 20, {"approximate": "tanh"}),
        ("Celu", X, 13, {"alpha": 0.7}),
        ("Elu", X, 13, {"alpha": 0.7}),
        ("LeakyRelu", X, 13, {"alpha": 0.3}),
        ("Neg", WHOLE, 13, {}),
        ("Abs", WHOLE, 13, {}),
        ("Cast", X * 9, 13, {"to": 7}),
        ("Cast", X, 13, {"to": 9}),
        ("Cast", TRUE, 13, {"to": 1}),
        ("Cast", X, 13, {"to": 11}),
        ("IsInf", np.array([[np.inf], [-np.inf], [1.0]], np.float32), 13, {}),
    ],
)
def test_unary_operators_with_attributes_equal_the_reference(op, x, opset, attributes, tmp_path):
    check(tmp_path, op, {"x": x}, opset=opset, **attributes)


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [
        *((op, X, Y) for op in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "Max", "Min")),
        *((op, X, Y) for op in ("GreaterOrEqual", "Sum", "Mean")),
        *((op, WHOLE, OTHER) for op in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater", "Max", "Min", "Mod")),
        *((op, TRUE, MASK) for op in ("And", "Or", "Xor")),
        ("Pow", np.abs(X), Y),
        ("Add", X, X[:1]),
        ("PRelu", X, np.array([0.25], np.float32)),
        ("CastLike", X, WHOLE),
    ],
)
def test_binary_operators_equal_the_reference(op, x, y, tmp_path):
    constants = ("y",) if len(y) != len(x) else ()
    check(tmp_path, op, {"x": x, "y": y}, constants=constants, opset=16)


def test_operators_with_constants_or_many_tensors_equal_the_reference(tmp_path):
    check(tmp_path, "Pow", {"x": X, "y": np.float32(2)}, constants=("y",))
    check(tmp_path, "Pow", {"x": X, "y": np.int64(3)}, constants=("y",))
    check(tmp_path, "Mod", {"x": X, "y": np.float32(0.7)}, constants=("y",), fmod=1)
    check(tmp_path, "Clip", {"x": X, "low": np.float32(-0.5), "high": np.float32(0.5)}, constants=("low", "high"))
    check(tmp_path, "Clip", {"x": X, "low": None, "high": np.float32(0.5)}, constants=("low", "high"))
    check(tmp_path, "Where", {"c": TRUE, "x": X, "y": Y})
    check(tmp_path, "Sum", {"x": X, "y": Y, "z": X})
    check(tmp_path, "Mean", {"x": X, "y": Y, "z": X})


@pytest.mark.parametrize(
    "op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"]
)
@pytest.mark.parametrize(("axes", "keep"), [([1], 1), ([-1], 0), ([1, 2], 0)])
def test_reduction_axes_may_be_attributes_or_inputs(op, axes, keep, tmp_path):
    by_input = {"x": CUBE, "axes": np.array(axes)}
    if op != "ReduceSum":
        check(tmp_path, op, {"x": CUBE}, axes=axes, keepdims=keep, opset=12)
        check(tmp_path, op, by_input, constants=("axes",), keepdims=keep, opset=18)
    else:
        check(tmp_path, op, {"x": CUBE}, axes=axes, keepdims=keep, opset=11)
        check(tmp_path, op, by_input, constants=("axes",), keepdims=keep, opset=13)


def test_other_reductions_equal_the_reference(tmp_path):
    check(tmp_path, "ReduceSumSquare", {"x": CUBE}, axes=[2], opset=13)
    check(tmp_path, "ReduceLogSum", {"x": np.abs(CUBE)}, axes=[2], opset=13)
    check(tmp_path, "ReduceLogSumExp", {"x": CUBE}, axes=[2], opset=13)
    check(tmp_path, "ReduceSum", {"x": CUBE}, noop_with_empty_axes=1, opset=13)
    check(tmp_path, "ReduceMean", {"x": CUBE}, keepdims=0, opset=13)
    check(tmp_path, "ArgMax", {"x": CUBE}, axis=2, keepdims=0, opset=13)
    check(tmp_path, "ArgMin", {"x": CUBE}, axis=1, opset=13)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_axis_follows_the_opset_version(op, tmp_path):
    for opset, attributes in ((11, {}), (11, {"axis": 2}), (11, {"axis": 1}), (13, {}), (13, {"axis": 1})):
        check(tmp_path, op, {"x": CUBE}, opset=opset, **attributes)


def test_unsupported_operator_is_refused_by_name(tmp_path):
    for path in (
        made(tmp_path / "a.onnx", "Cast", {"x": X}, to=8, opset=13),
        made(tmp_path / "b.onnx", "IsInf", {"x": X}, detect_negative=0, opset=13),
        made(tmp_path / "c.onnx", "ArgMax", {"x": X}, select_last_index=1, opset=13),
        made(tmp_path / "d.onnx", "ReduceSum", {"x": X}, axes=[7], opset=11),
    ):
        with pytest.raises(BadInput, match=r"graph: (Cast|IsInf|ArgMax|ReduceSum) ''"):
            translated(path, {"x": X})


def test_rounding_is_to_even(tmp_path):
    halves = np.array([[0.5], [1.5], [2.5], [-0.5]], np.float32)
    path = made(tmp_path / "m.onnx", "Round", {"x": halves})
    assert translated(path, {"x": halves})[0].ravel().tolist() == reference(path, {"x": halves})[0].ravel().tolist()
