"""Inputs to try a file on: integers that its tables, encoders and operators accept."""

import numpy as np
import pytest
from onnx import helper

from freshet_serving.compiler.imports.feeds import DENSE, FeedSpec
from freshet_serving.compiler.imports.onnx_native.native_reader import read_native
from freshet_serving.compiler.imports.onnx_native.native_samples import SIZES, NativeSamples
from freshet_serving.compiler.imports.onnx_native.served_lookups import find_lookups
from freshet_serving.processor.errors import BadInput
from tests.compiler.imports.onnx_native.native_models import ML, normal, spelled


def samples(path, given=None, dims=()):
    model = read_native(path)
    inputs = {one.name: FeedSpec(one.name, DENSE, one.dtype, dims) for one in model.inputs}
    return NativeSamples(model, inputs, find_lookups(model), given)


def test_ids_stay_below_the_rows_of_their_table(tmp_path):
    text = "g (int64[n] i) => (float[n, 2] y) { a = Gather (t, i) y = Shrink (a) }"
    made = samples(spelled(tmp_path / "m.onnx", text, t=normal(7, 2)))
    assert [len(one["i"]) for one in made.columns] == list(SIZES)
    assert set(made.columns[0]["i"].tolist()) == set(range(7))


def test_ids_without_a_table_are_tried_below_limits(tmp_path):
    text = "g (int64[n] i) => (float[n, 2] y) { j = Abs (i) a = Gather (t, j) y = Shrink (a) }"
    made = samples(spelled(tmp_path / "m.onnx", text, t=normal(12, 2)))
    assert made.columns[0]["i"].max() == 9
    assert made.outputs[0]["y"].shape == (SIZES[0], 2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16"])
def test_numbers_fit_the_type_of_their_input(dtype, tmp_path):
    text = f"g ({dtype}[n] i) => (float[n] y) {{ y = Cast <to = 1> (i) }}"
    made = samples(spelled(tmp_path / "m.onnx", text))
    assert 0 <= made.columns[0]["i"].min() < made.columns[0]["i"].max() <= (1 if dtype == "bool" else 1000)
    assert made.outputs[0]["y"].shape == (SIZES[0],)


def test_integers_that_an_encoder_lists_are_used(tmp_path):
    node = helper.make_node("OneHotEncoder", ["i"], ["y"], domain=ML, cats_int64s=[100, 205, 7], zeros=0)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("i", 7, ["n"])], [helper.make_tensor_value_info("y", 1, ["n", 3])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 1)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert set(samples(tmp_path / "m.onnx").columns[0]["i"].tolist()) == {100, 205, 7}


def test_given_rows_are_repeated_and_others_are_refused(tmp_path):
    text = "g (float[n] x) => (float[n] y) { y = Shrink (x) }"
    path = spelled(tmp_path / "m.onnx", text)
    np.testing.assert_array_equal(samples(path, {"x": [1, 2, 3]}).columns[1]["x"], [1, 2, 3, 1, 2, 3, 1])
    with pytest.raises(BadInput, match="samples: expected float32 values for input 'x'"):
        samples(path, {"x": ["a"]})


def test_file_that_accepts_nothing_is_refused_with_its_own_reason(tmp_path):
    text = "g (float[n, 3] x) => (float[n, 3] y) { a = Shrink (x) y = Reshape (a, shape) }"
    with pytest.raises(BadInput, match=r"runs the model on no inputs tried: give some with --samples: .*Reshape"):
        samples(spelled(tmp_path / "m.onnx", text, shape=np.array([7, 5])), dims=(3,))
