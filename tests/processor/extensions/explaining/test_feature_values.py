"""What features read of a row: keys, as they were asked for, and numbers."""

from dataclasses import replace

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.extensions.explaining.feature_values import MAX_TEXT, feature_values
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.kernels.hashing import hash_strings
from freshet_serving.processor.package import Feature, Input, Output, TableEntry, Transform
from tests.support.packages import make_inputs, manifest, tag_id


def values_of(made, inputs, row):
    plan = SparsePlan(made)
    return {v.feature.name: v for v in feature_values(made, plan, inputs, plan.bind_inputs(inputs), row)}


def test_ids_strings_and_floats_are_read_at_their_row():
    inputs = make_inputs([5, 2**53 + 1], tags=[["a"], ["b", "é"]])
    values = values_of(manifest(users=9, tags=9), inputs, 1)
    assert (values["user"].asked, values["user"].keys.tolist()) == ([str(2**53 + 1)], [2**53 + 1])
    assert (values["tags"].asked, values["tags"].keys.tolist()) == (["b", "é"], [tag_id("b"), tag_id("é")])
    assert values["f2"].numbers.tolist() == [inputs["floats"][1, 2]]
    assert values["f2"].asked == []


def test_values_beyond_max_length_are_counted_but_not_read():
    values = values_of(manifest(users=9, tags=9), make_inputs([1], tags=[["a", "b", "c", "d", "e"]]), 0)
    assert (values["tags"].asked, values["tags"].length) == (["a", "b", "c"], 5)


def test_single_row_input_is_read_for_every_row():
    inputs = make_inputs([7, 8, 9])
    inputs["user"] = np.array([7], np.int64)
    assert values_of(manifest(users=9, tags=9), inputs, 2)["user"].asked == ["7"]


@pytest.mark.parametrize(
    ("text", "shown"), [(b"\xff\x1b[2J", "\\xff\x1b[2J"), (b"x" * 1000, "x" * MAX_TEXT), (b"", "")]
)
def test_string_is_shown_as_truncated_text_for_any_bytes(text, shown):
    assert values_of(manifest(users=9, tags=9), make_inputs([1], tags=[[text]]), 0)["tags"].asked == [shown]


def transformed(transforms, feature):
    small = manifest(users=9, tags=9)
    return replace(
        small,
        inputs=[Input("word", "string"), Input("floats", "float32", columns=4)],
        features=[feature],
        tables=[TableEntry("word", 4, 9)],
        transforms=transforms,
        outputs=[Output("score")],
        width=4,
    )


def word_inputs(words):
    return {"word": Strings.of(words), "floats": np.zeros((len(words), 4), np.float32)}


def test_bucket_is_shown_as_its_source_string():
    transforms = [Transform("low", "lower", ["word"]), Transform("bucket", "farm", ["low"], [100])]
    made = transformed(transforms, Feature("word", "id", "bucket", table="word", width=4))
    values = values_of(made, word_inputs(["Jazz", "Pop"]), 1)["word"]
    assert (values.asked, values.input) == (["Pop"], "word")
    assert 0 <= values.keys[0] < 100


def test_each_key_of_a_hashed_value_shows_the_value():
    transforms = [Transform("codes", "quotient_remainder", ["word"], [7, 10, 10])]
    made = transformed(transforms, Feature("word", "ids", "codes", table="word", combiner="mean", width=4))
    values = values_of(made, word_inputs(["a", "b"]), 1)["word"]
    assert (values.asked, values.length, values.codes) == (["b", "b"], 1, 2)
    assert hash_strings(Strings.of(["b"]), 7)[0] not in values.keys


def test_crossed_feature_shows_its_key():
    made = transformed(
        [Transform("cross", "cross", ["word", "word"], [100, 3]), Transform("rows", "rows", ["cross"])],
        Feature("word", "ids", "rows", table="word", width=4),
    )
    values = values_of(made, word_inputs(["a"]), 0)["word"]
    assert values.asked == [str(values.keys[0])]
    assert values.input == "rows"


def test_empty_list_has_no_ids():
    inputs = make_inputs([1], tags=[[]])
    assert isinstance(inputs["tags"], Ragged)
    values = values_of(manifest(users=9, tags=9), inputs, 0)["tags"]
    assert (values.asked, values.keys.tolist(), values.length) == ([], [], 0)


def test_unsigned_ids_are_shown_without_sign():
    made = manifest(users=9, tags=9)
    made = replace(made, inputs=[replace(i, declared="uint64") if i.name == "user" else i for i in made.inputs])
    assert values_of(made, make_inputs([-1]), 0)["user"].asked == ["18446744073709551615"]
