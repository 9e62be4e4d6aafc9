import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput, FreshetError, TooLarge
from freshet_serving.processor.features.limits import RequestLimits, RequestSize
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, Input, Output
from freshet_serving.serving.codecs import examples
from freshet_serving.serving.codecs.messages import message
from tests.serving.fakes import FLAT, RAGGED

PACKED = Manifest(
    "ctr", 3, "fake", 0.0, [Input("ids", "int64", 2), Input("x", "float32", 2)],
    [
        Feature("user", "id", "ids", column=0, table="t"), Feature("item", "id", "ids", column=1, table="t"),
        Feature("a", "float", "x", column=0), Feature("b", "float", "x", column=1),
    ],
    [], [Output("score")], 1, {}, {},
)  # fmt: skip
SCORES = {"score": np.array([[0.5], [0.25]], np.float32)}


def columns(given, context=None, manifest=PACKED):
    return examples.columns(*examples.of_json(given, context or {}), manifest)


def test_features_are_gathered_into_packed_input_columns():
    given = [{"user": 1, "item": [2], "a": 0.5, "b": 1}, {"user": [3], "item": 4, "x": [7, 8]}]
    inputs = columns(given[:1])
    assert inputs["ids"].tolist() == [[1, 2]]
    assert inputs["x"].tolist() == [[0.5, 1]]
    assert columns([{"ids": [1, 2], "x": [0, 1]}])["ids"].tolist() == [[1, 2]]
    with pytest.raises(BadInput, match=r"Feature: x \(data type: DT_FLOAT\) is required"):
        columns(given)


def test_feature_named_only_in_the_context_has_one_row():
    inputs = columns([{"x": [0, 1]}, {"x": [2, 3]}], {"user": 1, "item": 2})
    assert inputs["ids"].tolist() == [[1, 2]]
    assert inputs["x"].tolist() == [[0, 1], [2, 3]]
    overridden = columns([{"user": 5, "x": [0, 1]}, {"x": [2, 3]}], {"user": 1, "item": 2})
    assert overridden["ids"].tolist() == [[5, 2], [1, 2]]


def test_unread_features_of_a_context_cost_nothing_for_each_example():
    context = {"user": 1, "item": 2} | {f"other{n}": 0 for n in range(2000)}
    given = examples.of_json([{"x": [0, 1]}] * 2000, context)
    tracemalloc.start()
    inputs = examples.columns(*given, PACKED)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert inputs["x"].shape == (2000, 2)
    # A dictionary of the context takes 70 kB.
    assert most < 2000 * 1000


def test_context_is_repeated_only_to_the_length_of_a_body():
    limits = RequestLimits(max_body_bytes=5000)
    given = [{"city": "a", "user": 1, "price": 2}] + [{"user": 1, "price": 2}] * 3
    for word, accepted in (("x" * 1600, True), ("x" * 1700, False)):
        size = RequestSize(limits)
        read = examples.of_json(given, {"city": word}, size)
        if accepted:
            cities = examples.columns(*read, FLAT, size)["city"]
            assert cities.tolist() == [b"a"] + [word.encode()] * 3
            continue
        expected = "max_body_bytes: expected at most 5000 bytes of repeated values, got 5124 with city;"
        with pytest.raises(TooLarge, match=expected):
            examples.columns(*read, FLAT, size)
    size = RequestSize(limits)
    read = examples.of_json([{"user": 1, "seen": [1]}, {"user": 2}], {"seen": list(range(1000))}, size)
    with pytest.raises(TooLarge, match=r"max_body_bytes: .* got 8000 with seen"):
        examples.columns(*read, RAGGED, size)


def test_ragged_feature_may_be_absent():
    inputs = columns([{"user": 1, "seen": [1, 2], "tags": "a"}, {"user": 2}], manifest=RAGGED)
    assert isinstance(inputs["seen"], Ragged)
    assert inputs["seen"].row_splits.tolist() == [0, 2, 2]
    assert inputs["tags"].values.tolist() == [b"a"]


def test_examples_of_a_message_equal_those_of_json():
    given = message("tensorflow.serving.Input")()
    for user, price, city in ((1, 0.5, b"x"), (2, 1.5, b"\xff")):
        features = given.example_list.examples.add().features.feature
        features["user"].int64_list.value.append(user)
        features["price"].float_list.value.append(price)
        features["city"].bytes_list.value.append(city)
    inputs = examples.columns(*examples.of_message(given), FLAT)
    assert inputs["user"].tolist() == [1, 2]
    assert inputs["price"].tolist() == [0.5, 1.5]
    assert inputs["city"].tolist() == [b"x", b"\xff"]
    with pytest.raises(BadInput, match="Input is empty"):
        examples.of_message(message("tensorflow.serving.Input")())


def test_results_need_matching_outputs():
    assert examples.regressions(SCORES).tolist() == [0.5, 0.25]
    assert [part.tolist() for part in examples.classes(SCORES)] == [[[""], [""]], [[0.5], [0.25]]]
    two = {"outputs": SCORES["score"], "scores": np.ones((2, 3), np.float32)}
    assert examples.regressions(two).tolist() == [0.5, 0.25]
    assert examples.classes(two)[1].shape == (2, 3)
    with pytest.raises(BadInput, match="Expected one output of numbers, or one named 'outputs', got a, b"):
        examples.regressions({"a": SCORES["score"], "b": SCORES["score"]})
    with pytest.raises(BadInput, match="batch_size, 1"):
        examples.regressions({"topic": np.ones((2, 3), np.float32)})


def test_classes_have_the_labels_of_an_output_of_strings():
    scores = np.array([[0.75, 0.25]], np.float32)
    names = np.array([["cat", "dog"]], object)
    labels, found = examples.classes({"classes": names, "scores": scores})
    assert labels.tolist() == [["cat", "dog"]]
    assert found.tolist() == [[0.75, 0.25]]
    # One class of each row names no score of several.
    assert examples.classes({"classes": names[:, :1], "scores": scores})[0].tolist() == [["", ""]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["user", "x", "b64"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_arbitrary_json_is_read_or_refused_with_a_freshet_error(given, context):
    for manifest in (PACKED, FLAT, RAGGED):
        try:
            columns(given, context, manifest)
        except FreshetError:
            continue


def test_equal_examples_keep_a_row_each():
    given = columns([{}, {}, {}], {"ids": [1, 2], "x": [0.5, 1]})
    assert max(len(column) for column in given.values()) == 3
    # One of them is enough: the other is sent, and looked up, once.
    assert sorted(len(column) for column in given.values()) == [1, 3]


def test_null_is_missing_as_in_training_and_objects_are_refused():
    found, _ = examples.of_json([{"x": [10, None], "name": ["a", None]}], {})
    assert found[0]["name"] == [b"a", b""]
    assert found[0]["x"][0] == 10
    assert found[0]["x"][1] != found[0]["x"][1]
    with pytest.raises(BadInput, match=r"examples\[0\]\.x: expected numbers or strings, got an object"):
        examples.of_json([{"x": [10, {"y": 1}]}], {})
    with pytest.raises(BadInput, match=r"examples\[0\]\.x: expected numbers or strings, got both"):
        examples.of_json([{"x": [10, "a"]}], {})
    with pytest.raises(BadInput, match=r"examples\[0\]\.x: expected numbers or strings, got both"):
        examples.of_json([{"x": [10, {"b64": "YQ=="}]}], {})


def test_booleans_are_integers_in_examples():
    found, _ = examples.of_json([{"x": [1, True, False]}, {"x": True}], {})
    assert [e["x"] for e in found] == [[1, 1, 0], [1]]
    with pytest.raises(BadInput, match=r"examples\[0\]\.x"):
        examples.of_json([{"x": [1.5, True]}], {})


def test_no_examples_are_no_rows():
    assert {name: len(column) for name, column in examples.columns([], {}, FLAT).items()} == dict.fromkeys(
        (i.name for i in FLAT.inputs), 0
    )
    labels, scores = examples.classes({"scores": np.empty((0, 3), np.float32)})
    assert labels.shape == scores.shape == (0, 3)
