import numpy as np
import pytest

from freshet_serving.compiler.imports.importing import ImportOptions, import_model
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.package import Input
from loadtest.bench.foreign_models.built import BuiltModel
from loadtest.bench.foreign_models.trial import WHOLE, WRONG, _line, as_json, column, compare, served
from tests.compiler.imports.onnx_native.native_models import spelled


def test_errors_within_the_bound_are_close():
    found = compare({"score": np.array([[0.500001], [200.001]])}, {"score": np.array([0.5, 200.0])})
    assert (found["close"], found["missing"], found["message"]) == (True, [], "")
    assert found["abs"] == pytest.approx(1e-3)
    assert found["rel"] == pytest.approx(5e-6)


def test_larger_errors_are_told():
    found = compare({"score": np.array([[0.6]])}, {"score": np.array([0.5])})
    assert (found["close"], found["message"]) == (False, "differs by 0.1")


def test_outputs_that_are_not_served_are_named():
    expected = {"label": np.array(["a"]), "p/0": np.array([0.5])}
    found = compare({"p_0": np.array([[0.5]])}, expected)
    assert (found["close"], found["missing"], found["message"]) == (True, ["label"], "without label")


def test_single_output_may_have_another_name():
    assert compare({"output_0": np.array([[1.0]])}, {"score": np.array([1.0])})["close"]
    assert not compare({"x": np.array([[1.0]]), "y": np.array([[1.0]])}, {"score": np.array([1.0])})["close"]


def test_strings_are_compared():
    assert compare({"label": np.array([b"a"], object)}, {"label": np.array(["a"])})["close"]
    assert not compare({"label": np.array([b"b"], object)}, {"label": np.array(["a"])})["close"]


def test_labels_of_a_served_model_are_compared_as_replies_have_them(tmp_path):
    encoder = (
        "g (int64[n] id) => (string[n] label) { label = ai.onnx.ml.LabelEncoder "
        '<keys_int64s = [1, 2], values_strings = ["north", "south"], default_string = "none"> (id) }'
    )
    path = spelled(tmp_path / "m.onnx", encoder, ml=3)
    import_model(path, tmp_path / "models", "small", options=ImportOptions(buckets=(1, 8)))
    ids = np.array([1, 2, 3])
    for labels, status in ((["north", "south", "none"], WHOLE), (["north", "south", "south"], WRONG)):
        built = BuiltModel(path, {"id": ids}, {"label": np.array(labels)}, [])
        assert served(built, tmp_path / "models", "small")["status"] == status


def test_rows_become_the_columns_of_the_package():
    inputs = {
        "ids": np.array([[1], [2]], np.int32),
        "history": np.array([[1, 2], [3, 4]]),
        "tags": np.array([5, 6, 7]),
        "tags:row_splits": np.array([0, 1, 3]),
        "words": np.array([["a"], ["ü"]]),
    }
    np.testing.assert_array_equal(column(Input("ids", "int64"), inputs, "ids"), np.array([1, 2]))
    np.testing.assert_array_equal(column(Input("history", "int64", 2), inputs, "history"), inputs["history"])
    free = column(Input("history", "int64", ragged=True), inputs, "history")
    tags = column(Input("tags", "int64", ragged=True), inputs, "tags")
    words = column(Input("words", "string"), inputs, "words")
    assert isinstance(free, Ragged)
    assert (free.values.tolist(), free.row_splits.tolist()) == ([1, 2, 3, 4], [0, 2, 4])
    assert (tags.values.tolist(), tags.row_splits.tolist()) == ([5, 6, 7], [0, 1, 3])
    assert isinstance(words, Strings)
    assert words.tolist() == [b"a", "ü".encode()]


def test_samples_are_rows_of_json():
    inputs = {"x": np.array([[0.5, 1], [2, 3]]), "tags": np.array([5, 6, 7]), "tags:row_splits": np.array([0, 1, 3])}
    assert as_json(inputs) == {"x": [[0.5, 1.0], [2.0, 3.0]], "tags": [[5], [6, 7]]}


def test_error_is_one_line_without_folders():
    text = "a warning\nfreshet: error: /tmp/x/model.onnx: no operator\n\n"
    assert _line(text) == "freshet: error: model.onnx: no operator"
    assert _line("") == "no message"
