import json

import numpy as np

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.package import Input
from freshet_serving.serving.front.example_text import looked_up_text, texts

SPECS = [Input("age", "float32"), Input("tags", "string", ragged=True), Input("city", "string"), Input("key", "int64")]
WATCHED = Input("h.watched", "float32", ragged=True)
COLUMNS = {
    "age": np.array([1.5, np.nan], np.float32),
    "tags": Ragged.of([["a", "\u00fc\n"], []]),
    "city": Strings.of([b"x", b"\xff"]),
}


def test_looked_up_columns_are_one_line_of_ascii_json():
    text = looked_up_text(COLUMNS, SPECS, 1000)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == {"age": [1.5, None], "tags": [["a", "\u00fc\n"], []], "city": ["x", {"b64": "/w=="}]}


def test_values_that_are_too_long_together_are_null():
    assert json.loads(looked_up_text(COLUMNS, SPECS, 20)) == {"age": [1.5, None], "tags": None, "city": None}


def test_missing_floats_of_a_looked_up_list_are_null():
    lists = {"h.watched": Ragged.of([[0.5, float("nan")], []])}
    assert json.loads(looked_up_text(lists, [WATCHED], 100)) == {"h.watched": [[0.5, None], []]}


def test_an_example_lacks_what_its_request_left_out():
    assert set(texts(COLUMNS, SPECS)) == set(COLUMNS)


def test_unsigned_ids_are_written_as_they_are_sent():
    specs = [Input("id", "int64", declared="uint64"), Input("seen", "int64", ragged=True, declared="uint64")]
    ids = np.array([2**64 - 1, 5], np.uint64).view(np.int64)
    columns = {"id": ids, "seen": Ragged(ids, np.array([0, 1, 2]))}
    shown = {"id": [2**64 - 1, 5], "seen": [[2**64 - 1], [5]]}
    assert {name: json.loads(text) for name, text in texts(columns, specs).items()} == shown
    assert json.loads(looked_up_text(columns, specs, 1000)) == shown
