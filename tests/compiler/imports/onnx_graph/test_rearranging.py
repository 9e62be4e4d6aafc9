"""Operators that put numbers elsewhere give what ONNX Runtime gives, in every version's spelling."""

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput, TooLarge
from tests.compiler.imports.onnx_graph.spelled import ENDLESS, check_same, made, translated, written

RANDOM = np.random.default_rng(6)
X = RANDOM.standard_normal((5, 4)).astype(np.float32)
CUBE = RANDOM.standard_normal((5, 3, 4)).astype(np.float32)
AXES = ("axes", "starts", "ends", "steps", "shape", "split", "indices", "k", "pads", "value", "depth", "values", "axis")


def check(tmp_path, op, inputs, constants=AXES, **more):
    inputs = {k: np.asarray(v) if v is not None else None for k, v in inputs.items()}
    check_same(made(tmp_path / "m.onnx", op, inputs, constants=constants, **more), inputs)


@pytest.mark.parametrize("shape", [[-1, 2, 2], [0, 4], [0, 2, 2], [-1, 4], [0, -1, 1], [0, 0, 1]])
def test_reshape_keeps_or_infers_sizes(shape, tmp_path):
    check(tmp_path, "Reshape", {"x": X, "shape": shape})


@pytest.mark.parametrize("perm", [[0, 2, 1], [2, 0, 1], [1, 2, 0], [2, 1, 0], [0, 1, 2]])
def test_transpose_may_move_the_batch_anywhere(perm, tmp_path):
    check(tmp_path, "Transpose", {"x": CUBE}, perm=perm)
    check(tmp_path, "Transpose", {"x": CUBE})


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten_equals_the_reference(axis, tmp_path):
    check(tmp_path, "Flatten", {"x": CUBE}, axis=axis, opset=13)


def test_squeeze_and_unsqueeze_equal_the_reference_in_every_opset(tmp_path):
    one = X[:, None, :, None]
    for axes in ([1], [-1], [1, 3]):
        check(tmp_path, "Squeeze", {"x": one}, axes=axes, opset=11)
        check(tmp_path, "Squeeze", {"x": one, "axes": axes}, opset=13)
    check(tmp_path, "Squeeze", {"x": one}, opset=11)
    check(tmp_path, "Squeeze", {"x": one}, opset=13)
    for axes in ([1], [-1], [1, 3], [0, -1]):
        check(tmp_path, "Unsqueeze", {"x": X}, axes=axes, opset=11)
        check(tmp_path, "Unsqueeze", {"x": X, "axes": axes}, opset=13)


@pytest.mark.parametrize(
    "parts",
    [
        {"starts": [1], "ends": [3], "axes": [1], "steps": [1]},
        {"starts": [-2], "ends": [ENDLESS], "axes": [1], "steps": [1]},
        {"starts": [0, 1], "ends": [4, ENDLESS], "axes": [0, 1], "steps": [2, 1]},
        {"starts": [ENDLESS], "ends": [-ENDLESS], "axes": [1], "steps": [-1]},
        {"starts": [1, 0], "ends": [9, 2]},
        {"starts": [0], "ends": [-1], "axes": [-1]},
    ],
)
def test_slice_equals_the_reference(parts, tmp_path):
    check(tmp_path, "Slice", {"x": X, **parts})


def test_split_by_sizes_or_count_equals_the_reference(tmp_path):
    check(tmp_path, "Split", {"x": X}, outputs=2, axis=1, split=[1, 3], opset=11)
    check(tmp_path, "Split", {"x": X}, outputs=2, axis=1, opset=11)
    check(tmp_path, "Split", {"x": X, "split": [1, 3]}, outputs=2, axis=-1, opset=13)
    check(tmp_path, "Split", {"x": CUBE}, outputs=2, axis=1, num_outputs=2, opset=18)


def test_concat_expand_and_tile_equal_the_reference(tmp_path):
    check(tmp_path, "Concat", {"x": X, "y": X * 2}, axis=-1)
    check(tmp_path, "Expand", {"x": X[:, :1], "shape": [1, 4]})
    check(tmp_path, "Expand", {"x": X, "shape": [3, 1, 1]})
    check(tmp_path, "Expand", {"x": X, "shape": [1, 1]})
    check(tmp_path, "Tile", {"x": X, "shape": [1, 2]})


def test_shape_and_size_operators_equal_the_reference(tmp_path):
    check(tmp_path, "Shape", {"x": CUBE})
    check(tmp_path, "Shape", {"x": CUBE}, start=1, opset=15)
    check(tmp_path, "Shape", {"x": CUBE}, start=0, end=-1, opset=15)
    check(tmp_path, "Size", {"x": CUBE})


@pytest.mark.parametrize("indices", [2, -1, [0, 2], [[0], [-1]]])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_gather_by_constants_equals_the_reference(indices, axis, tmp_path):
    check(tmp_path, "Gather", {"x": CUBE, "indices": indices}, axis=axis)


def test_gather_by_request_ids_accepts_negative_indices(tmp_path):
    at = np.array([[0], [1], [-1], [2], [-5]])
    check(tmp_path, "Gather", {"x": X, "at": at})
    check(tmp_path, "GatherElements", {"x": X, "at": np.mod(at, 4)}, axis=1, constants=())
    check(tmp_path, "GatherElements", {"x": CUBE, "at": np.zeros((5, 2, 4), np.int64)}, axis=1, constants=())
    check(tmp_path, "GatherND", {"x": CUBE, "at": np.array([[0], [1], [2], [0], [1]])}, batch_dims=1, constants=())
    check(tmp_path, "GatherND", {"x": CUBE, "indices": [[0, 1], [4, 2]]})


def test_remaining_operators_equal_the_reference(tmp_path):
    check(tmp_path, "ScatterND", {"x": X, "at": np.array([[0], [2]]), "to": X[3:]}, constants=("at", "to"))
    for upper in (0, 1):
        check(tmp_path, "Trilu", {"x": CUBE}, upper=upper)
        check(tmp_path, "Trilu", {"x": CUBE, "k": 1}, upper=upper)
    for largest in (0, 1):
        check(tmp_path, "TopK", {"x": X, "k": [2]}, outputs=2, largest=largest)
    check(tmp_path, "CumSum", {"x": X, "axis": 1})
    check(tmp_path, "CumSum", {"x": X, "axis": 1}, exclusive=1, reverse=1)
    check(tmp_path, "OneHot", {"x": np.array([0, 2, -1]), "depth": [4], "values": np.array([0.0, 1.0], np.float32)})
    check(tmp_path, "Pad", {"x": X, "pads": [0, 1, 0, 2], "value": np.float32(7)})
    check(tmp_path, "ConstantOfShape", {"shape": [2, 3]})


# PyTorch's z[:, i, j], as its exporters spell it: the batch goes behind, rows are picked in front, and it comes back.
PAIRS = {
    "torchscript": """
        s = Shape (x)
        zero = Constant <value: tensor = int64[1] {0}> ()
        two = Constant <value: tensor = int64[1] {2}> ()
        batch = Gather <axis: int = 0> (s, zero)
        columns = Gather <axis: int = 0> (s, two)
        t = Transpose <perm: ints = [1, 2, 0]> (x)
        flat = Flatten <axis: int = 2> (t)
        i = Constant <value: tensor = int64[3] {1, 2, 2}> ()
        at = Mul (i, columns)
        j = Constant <value: tensor = int64[3] {0, 0, 1}> ()
        index = Add (j, at)
        picked = Gather <axis: int = 0> (flat, index)
        number = Shape (index)
        rest = Constant <value: tensor = int64[1] {-1}> ()
        size = Concat <axis: int = 0> (rest, batch)
        again = Reshape (picked, size)
        back = Transpose <perm: ints = [1, 0]> (again)
        sizes = Concat <axis: int = 0> (batch, number)
        y = Reshape (back, sizes)""",
    "dynamo": """
        t = Transpose <perm: ints = [1, 2, 0]> (x)
        index = Constant <value: tensor = int64[3, 2] {1, 0, 2, 0, 2, 1}> ()
        picked = GatherND <batch_dims: int = 0> (t, index)
        y = Transpose <perm: ints = [1, 0]> (picked)""",
}


@pytest.mark.parametrize("spelling", PAIRS.values(), ids=PAIRS)
def test_selecting_pairs_of_a_matrix_keeps_the_batch_axis(spelling, tmp_path):
    path = written(tmp_path / "m.onnx", f"g (float[batch, 3, 3] x) => (float[batch, 3] y) {{ {spelling} }}")
    check_same(path, {"x": RANDOM.standard_normal((5, 3, 3)).astype(np.float32)})


def test_moved_batch_axis_is_moved_back_for_its_consumers(tmp_path):
    text = """g (float[batch, 3, 3] x) => (float[3, 3, batch] y, float[a, b] z, float[c, d] w) {
        t = Transpose <perm: ints = [1, 2, 0]> (x)
        y = Neg (t)
        z = Flatten <axis: int = 1> (t)
        flat = Flatten <axis: int = 2> (t)
        shape = Constant <value: tensor = int64[2] {3, -1}> ()
        w = Reshape (flat, shape)
    }"""
    check_same(written(tmp_path / "m.onnx", text), {"x": RANDOM.standard_normal((5, 3, 3)).astype(np.float32)})


# torch.Tensor.expand(-1, 3, -1), as TorchScript's exporter spells it.
EXPANDED = """g (float[batch, 1, 4] x) => (float[batch, 3, 4] y) {
    wanted = Constant <value: tensor = int64[3] {-1, 3, -1}> ()
    n = Shape (wanted)
    ones = ConstantOfShape <value: tensor = int64[1] {1}> (n)
    minus = Constant <value: tensor = int64 {-1}> ()
    negative = Mul (ones, minus)
    kept = Equal (wanted, negative)
    shape = Where (kept, ones, wanted)
    y = Expand (x, shape)
}"""


def test_pytorch_expand_spellings_equal_the_reference(tmp_path):
    check_same(written(tmp_path / "m.onnx", EXPANDED), {"x": CUBE[:, :1]})


def test_invalid_attribute_is_refused_with_the_operator_name(tmp_path):
    path = tmp_path / "m.onnx"
    for op, inputs, more in (
        ("Slice", {"x": X, "starts": [0, 1], "ends": [1]}, {}),
        ("Transpose", {"x": X}, {"perm": [0, 5]}),
        ("Concat", {"x": X, "y": CUBE}, {"axis": 1}),
        ("Pad", {"x": X, "pads": [0, 0, 0, 1]}, {"mode": "reflect"}),
        ("ScatterND", {"x": X, "indices": [[0]], "values": X[:1]}, {"reduction": "add"}),
        ("TopK", {"x": X, "k": [2]}, {"axis": 0, "outputs": 2}),
        ("Squeeze", {"x": X, "axes": np.array([1])}, {"constants": ()}),
    ):
        inputs = {k: np.asarray(v) for k, v in inputs.items()}
        more = {"constants": AXES, "opset": 16} | more
        with pytest.raises(BadInput, match=f"graph: {op} ''"):
            translated(made(path, op, inputs, **more), inputs)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", {"shape": [1 << 20, 1 << 20]}),
        ("Range", {"shape": 0, "k": 1 << 40, "axis": 1}),
        ("Expand", {"shape": [[1.0]], "k": [1 << 20, 1 << 20]}),
        ("Tile", {"shape": [[1]], "k": [1 << 20, 1 << 20]}),
        ("OneHot", {"x": [1], "depth": 1 << 40, "values": [0, 1]}),
    ],
)
def test_large_constant_results_are_refused(op, inputs, tmp_path):
    inputs = {k: np.asarray(v) for k, v in inputs.items()}
    with pytest.raises(TooLarge, match=f"graph: {op} '': expected at most"):
        translated(made(tmp_path / "m.onnx", op, inputs, constants=AXES), inputs)
