import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.serving.codecs import json_columns
from freshet_serving.serving.codecs.json_columns import SHORT_NBYTES, column, has_booleans
from freshet_serving.serving.codecs.wire import load_json

MANY = json_columns.PACKED_AT_ONCE + 3
SPECS = [Input("x", dtype, columns) for dtype in ("int64", "float32") for columns in (0, 2)]
SCALARS = (
    st.integers() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.floats(width=32)
    | st.none() | st.booleans() | st.text(max_size=2)
)  # fmt: skip
VALUES = st.lists(SCALARS, max_size=6) | st.lists(st.lists(SCALARS, max_size=3), max_size=4)
GOOD = st.lists(st.lists(st.integers(-(2**31), 2**31), min_size=2, max_size=2), max_size=5)


def outcome(spec, values, plain):
    try:
        array = column(spec, values, plain)
    except BadInput as error:
        return str(error)
    return array.dtype.name, array.shape, array.tobytes()


@given(VALUES | GOOD)
def test_fast_path_reads_and_refuses_like_the_slow_path(values):
    body = json.dumps(values).encode()
    if has_booleans(body):
        return
    for spec in SPECS:
        assert outcome(spec, values, True) == outcome(spec, values, False)


@pytest.mark.parametrize("body", [b"true", b"[1,false]"])
def test_booleans_are_found_in_short_and_long_bodies(body):
    assert has_booleans(body)
    assert has_booleans(body + b" " * SHORT_NBYTES)
    assert has_booleans(memoryview(body))


@pytest.mark.parametrize("body", [b'{"price_rub":1}', b'"also"'])
def test_long_body_with_their_letters_may_hold_booleans(body):
    assert not has_booleans(body)
    assert has_booleans(body + b" " * SHORT_NBYTES)


@pytest.mark.parametrize("body", [b"", b"r", b'{"user":[1,2.5e3,null],"floats":[]}'])
def test_body_without_booleans_is_detected(body):
    assert not has_booleans(body)


NUMBERS = st.sampled_from([math.nan, math.inf, -math.inf, 1.5, 7, 3e38])


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=5), st.booleans())
def test_nan_and_infinity_are_parsed_as_numbers(values, plain):
    read = column(SPECS[3], load_json(json.dumps({"x": values}).encode())["x"], plain)
    np.testing.assert_array_equal(read, np.float32(values))


@pytest.mark.parametrize("number", [b"7e307", b"8.5e307", b"-8e307", b"1e300", b"7" + b"0" * 307])
def test_number_exceeding_float32_is_refused_even_next_to_nan(number):
    for others in (b"1", b"NaN, -Infinity"):
        values = load_json(b'{"x": [%b, %b]}' % (number, others))["x"]
        with pytest.raises(BadInput, match="without loss of precision"):
            column(SPECS[2], values, True)


def test_nan_placeholder_is_shown_as_nan_and_not_a_string():
    for spec in (SPECS[0], Input("x", "string")):
        with pytest.raises(BadInput, match=r"JSON Value: NaN \(a number, value 0\)"):
            column(spec, load_json(b'{"x": [NaN]}')["x"], True)


def test_columns_are_read_whole():
    assert column(SPECS[1], [[1, 2], [3, 4]], True).tolist() == [[1, 2], [3, 4]]
    assert column(SPECS[3], [[0.1, 2]], True).tolist() == [[np.float32(0.1), 2]]
    assert column(SPECS[1], [], True).shape == (0, 2)


@pytest.mark.parametrize(("value", "shown"), [(None, "null"), (True, "true"), ("a", '"a"'), (1.0, "1.0")])
def test_value_of_the_wrong_type_is_shown_as_json(value, shown):
    with pytest.raises(BadInput, match=re.escape(f"ids: JSON Value: {shown} (")):
        column(Input("ids", "int64"), [value])


@given(st.lists(st.none() | NUMBERS, min_size=1, max_size=6))
def test_null_may_stand_beside_nan_and_infinity(values):
    read = column(SPECS[2], load_json(json.dumps({"x": values}).encode())["x"])
    np.testing.assert_array_equal(read, np.float32([math.nan if v is None else v for v in values]))


# null: what docs/reference/data.md says of a null in training data.


def test_null_is_a_missing_float_string_or_list():
    floats = column(Input("price", "float32", columns=2), [[1.5, None], [None, 2]], plain=True)
    np.testing.assert_array_equal(floats, np.array([[1.5, np.nan], [np.nan, 2]], np.float32))
    assert column(Input("name", "string"), ["a", None]).tolist() == [b"a", b""]
    ragged = column(Input("seen", "int64", ragged=True), [[1, 2], None, [3]], plain=True)
    assert (ragged.values.tolist(), ragged.row_splits.tolist()) == ([1, 2, 3], [0, 2, 2, 3])


def test_item_that_is_no_list_is_named_past_nulls():
    with pytest.raises(BadInput, match="got a string at item 2"):
        column(Input("tags", "string", ragged=True), [None, ["a"], "b"])


@pytest.mark.parametrize("rows", [[None], [None, None], [[1], None], [None, []]])
def test_null_lists_are_empty_lists_whether_some_or_all_are(rows):
    ragged = column(Input("seen", "int64", ragged=True), rows)
    assert ragged.row_splits.tolist() == [0, *np.cumsum([len(row or ()) for row in rows])]


JSON = st.recursive(
    SCALARS | st.just({"b64": "YQ=="}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["b64", "x"]), inner, max_size=2),
    max_leaves=8,
)
EVERY = [
    Input("x", dtype, columns, ragged)
    for dtype in ("int64", "float32", "string")
    for columns, ragged in ((0, False), (2, False), (0, True))
]


@given(JSON | st.lists(JSON, max_size=4), st.booleans())
def test_every_json_value_is_a_column_or_refused_by_the_name_of_its_input(value, some):
    plain = some and not has_booleans(json.dumps(value).encode())
    for spec in EVERY:
        result = None
        try:
            column(spec, value, plain)
        except BadInput as error:
            result = str(error)
        assert result is None or result.startswith("x: ")


@pytest.mark.parametrize("spec", [Input("id", "int64"), Input("id", "int64", ragged=True)])
def test_null_id_is_refused(spec):
    with pytest.raises(BadInput) as caught:
        column(spec, [[1, None]] if spec.ragged else [1, None])
    assert str(caught.value) == (
        "id: JSON Value: null (null, value 1) is not of expected type: DT_INT64; "
        "null means a missing float, string or list, but an id cannot be missing"
    )


@pytest.mark.parametrize("columns", [0, 2])
def test_values_beyond_one_pack_stay_in_order(columns):
    spec, flat = Input("x", "int64", columns), list(range(MANY - MANY % 2))
    values = [flat[at : at + 2] for at in range(0, len(flat), 2)] if columns else flat
    assert column(spec, values, plain=True).reshape(-1).tolist() == flat
    values[-1] = [1, "a"] if columns else "a"
    with pytest.raises(BadInput, match="JSON Value"):
        column(spec, values, plain=True)
