import numpy as np
import pytest

from loadtest.bench.foreign_models.built import TableUse, read_built, with_value, write_built

INPUTS = {"item": np.array([5, 6]), "history": np.array([[5, 6], [7, 0]]), "word": np.array(["a", "b"])}


def test_what_a_builder_leaves_is_read_back(tmp_path):
    uses = [TableUse("item", "history", 1), TableUse("word", "word", one="Oslo", other="Łódź")]
    examples = np.array([b"\x01\x00", b""], object)
    (tmp_path / "model.onnx").touch()
    assert read_built(tmp_path) is None

    write_built(tmp_path, INPUTS | {"examples": examples}, {"score": np.ones((2, 1))}, uses)

    built = read_built(tmp_path)
    assert built.source == tmp_path / "model.onnx"
    assert built.uses == uses
    assert built.inputs["examples"].tolist() == examples.tolist()
    np.testing.assert_array_equal(built.inputs["history"], INPUTS["history"])
    assert built.expected["score"].shape == (2, 1)


@pytest.mark.parametrize(
    ("use", "changed"),
    [
        (TableUse("item", "item"), [9, 9]),
        (TableUse("item", "history", 1), [[5, 9], [7, 9]]),
        (TableUse("word", "word"), ["longer than before", "longer than before"]),
    ],
)
def test_ids_are_replaced_in_one_place_and_the_rows_stay(use, changed):
    value = "longer than before" if use.input == "word" else 9
    found = with_value(INPUTS, use, value)
    assert found[use.input].tolist() == changed
    assert {name for name in INPUTS if found[name] is not INPUTS[name]} == {use.input}
    assert INPUTS["history"].tolist() == [[5, 6], [7, 0]]


def test_first_value_of_every_ragged_row_is_replaced():
    inputs = {"tags": np.array([4, 5, 6]), "tags:row_splits": np.array([0, 2, 2, 3])}
    assert with_value(inputs, TableUse("tags", "tags"), 9)["tags"].tolist() == [9, 5, 9]


def test_bytes_and_strings_come_back_without_pickles(tmp_path):
    serialised = np.array([b"\x08\x01\x00\x00", b"", b"a"], object).reshape(3, 1)
    words = np.array(["é", "", "bc"], object)
    (tmp_path / "model.onnx").write_bytes(b"x")
    write_built(tmp_path, {"examples": serialised, "words": words}, {"score": np.ones(3)})
    found = read_built(tmp_path).inputs
    assert found["examples"].tolist() == serialised.tolist()
    assert found["words"].tolist() == words.tolist()
