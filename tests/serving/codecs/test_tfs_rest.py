import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.serving.codecs import tfs_rest
from tests.models.zoo.sequence_models import manifest as sequence_manifest
from tests.serving.fakes import FLAT, FOLLOWING, PACKED, RAGGED, SINGLE, TWO_OUTPUTS


def decode(document, manifest=PACKED, headers=None):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return tfs_rest.decode(body, headers or {}, manifest)


def refusal(document, manifest=PACKED, headers=None):
    with pytest.raises(BadInput) as caught:
        decode(document, manifest, headers)
    return str(caught.value)


def outcome(document, manifest):
    """The message of the FreshetError that decode() raises, or "" when it raises none."""
    try:
        decode(document, manifest)
    except FreshetError as error:
        return str(error)
    return ""


def test_rows_of_named_inputs_become_one_column_each():
    inputs, options = decode(
        {"instances": [{"ids": [1, 2, 3], "floats": [0.5, 1]}, {"ids": [4, 5, 6], "floats": [2, 3]}]}
    )
    assert inputs["ids"].dtype == np.int64
    assert inputs["ids"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert inputs["floats"].dtype == np.float32
    assert inputs["floats"].tolist() == [[0.5, 1.0], [2.0, 3.0]]
    assert options == tfs_rest.PredictOptions(row=True)


def test_columns_are_accepted_and_unknown_keys_ignored():
    inputs, options = decode({"inputs": {"ids": [[1, 2, 3]], "floats": [[1, 2], [3, 4]], "other": "x"}})
    assert inputs.keys() == {"ids", "floats"}
    assert inputs["ids"].shape == (1, 3)
    assert not options.row


def test_input_of_shape_n_also_accepts_n_by_1():
    document = {"inputs": {"user": [[1], [2]], "price": [1.5, 2], "city": [["a"], [{"b64": "gA=="}]]}}
    inputs, _ = decode(document, FLAT)
    assert inputs["user"].tolist() == [1, 2]
    assert inputs["city"].tolist() == [b"a", b"\x80"]


def test_ragged_inputs_are_nested_lists():
    inputs, _ = decode(
        {"instances": [{"user": 1, "seen": [], "tags": ["a", "bc"]}, {"user": 2, "seen": [7], "tags": []}]}, RAGGED
    )
    assert inputs["seen"].values.tolist() == [7]
    assert inputs["seen"].row_splits.tolist() == [0, 0, 1]
    assert inputs["tags"].values.tolist() == [b"a", b"bc"]
    assert isinstance(inputs["tags"], Ragged)


def test_model_with_one_input_accepts_plain_values():
    rows, _ = decode({"instances": [[1, 2], [3, 4]]}, SINGLE)
    columns, _ = decode({"inputs": [[1, 2], [3, 4]]}, SINGLE)
    assert rows["x"].tolist() == columns["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_nan_and_infinity_are_numbers():
    inputs, _ = decode(b'{"instances": [[NaN, -Infinity], [Infinity, 1]]}', SINGLE)
    assert np.isnan(inputs["x"][0, 0])
    assert inputs["x"][0, 1] == -np.inf
    assert inputs["x"][1].tolist() == [np.inf, 1.0]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "The document is empty"),
        (b"{", "JSON Parse error"),
        (b'{"instances": NaN', "JSON Parse error"),
        (b"[]", "expected an object"),
        ({}, "Missing 'inputs' or 'instances' key"),
        ({"instances": [], "inputs": []}, "expecting only one of 'inputs' or 'instances'"),
        ({"instances": 3}, "to be a list/array, got a number"),
        ({"instances": [1]}, "expecting list of objects"),
        ({"inputs": [1]}, "expecting an object as multiple"),
        ({"inputs": {"ids": [[1, 2, 3]]}}, "Missing named input: floats in 'inputs' object."),
        ({"instances": [{"ids": [1, 2, 3]}]}, "Failed to process element: 0"),
        ({"instances": [{"ids": [1, 2, 3], "floats": [1, 2], "x": 1}]}, "keys must be equal to: floats,ids"),
        ({"instances": [{"ids": [1, 2, 3], "floats": [1, 2]}, 5]}, "Expecting object but got list at item 1"),
        ({"instances": [{"ids": [1, 2], "floats": [1, 2]}]}, "unexpected size: 2 at item 0 expected size: 3"),
        ({"instances": [{"ids": [1, 2, 3.0], "floats": [1, 2]}]}, "3.0 (a number, value 2) is not of"),
        ({"instances": [{"ids": [1, 2, True], "floats": [1, 2]}]}, "not of expected type: DT_INT64"),
        ({"instances": [{"ids": [1, 2, 2**63], "floats": [1, 2]}]}, "9223372036854775808 which is out of range"),
        ({"instances": [{"ids": [1, 2, [3]], "floats": [1, 2]}]}, "(a list, value 2)"),
        ({"instances": [{"ids": [1, 2, 3], "floats": [1, "2"]}]}, "not of expected type: DT_FLOAT"),
        ({"instances": [{"ids": [1, 2, 3], "floats": [1, 1e39]}]}, "without loss of precision"),
        ({"instances": [{"ids": [1, 2, None], "floats": [1, 2]}]}, "null"),
        ({"instances": [{"ids": 5, "floats": [1, 2]}]}, "shape [n, 3], got a number at item 0"),
        ({"inputs": {"ids": 5, "floats": [[1, 2]]}}, "expected a list of shape [n, 3], got a number"),
        ({"signature_name": 3, "inputs": []}, "'signature_name' key must be a string"),
        ({"signature_name": "other", "inputs": []}, "not found in signature def"),
    ],
)  # fmt: skip
def test_malformed_request_gives_the_tensorflow_serving_error(document, message):
    assert message in refusal(document)


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("inputs", "Missing named input: history.time in 'inputs' object: "),
        ("instances", "Failed to process element: 0 of 'instances' list. JSON object with keys "),
    ],
)
def test_missing_times_are_told_by_what_to_send(form, start):
    timed = sequence_manifest("a", 3, timed=True)
    sent = {i.name: [[1]] if i.ragged and form == "inputs" else [1] for i in timed.inputs if i.name != "history.time"}
    message = refusal({form: sent if form == "inputs" else [sent]}, timed)
    assert message.startswith(start)
    assert "expected the times of a user's events in seconds since 1970, oldest first" in message


@pytest.mark.parametrize(
    ("city", "message"),
    [
        (7, "DT_STRING"),
        ({"b64": "?"}, "Unable to base64 decode"),
        ({"b64": "gA==", "x": 1}, "not formatted correctly for base64"),
        ({"b64": 1}, "not formatted correctly for base64"),
        ([1, 2], "unexpected size"),
    ],
)
def test_value_that_is_not_a_string_is_refused(city, message):
    assert message in refusal({"inputs": {"user": [1], "price": [1], "city": [city]}}, FLAT)


def test_objects_among_plain_values_are_refused():
    assert "got object at item 1" in refusal({"instances": [[1, 2], {"x": [1, 2]}]}, SINGLE)


def test_ragged_rows_must_be_lists():
    assert "seen: expected a list of lists, got a number at item 0" in refusal(
        {"inputs": {"user": [1], "seen": [1], "tags": [[]]}}, RAGGED
    )


def test_number_with_thousands_of_digits_is_not_echoed():
    message = refusal(b'{"instances": [[NaN, ' + b"9" * 4000 + b"]]}", SINGLE)
    assert len(message) < 200


def test_lone_surrogate_is_refused():
    for price in (b"1", b"NaN"):
        body = b'{"inputs": {"user": [1], "price": [%b], "city": ["\\ud800"]}}' % price
        assert "JSON Parse error" in refusal(body, FLAT)


def test_timeout_header_is_read_in_milliseconds():
    document = {"instances": [[1, 2]]}
    assert decode(document, SINGLE, {b"x-request-timeout-ms": b"250"})[1].timeout_s == 0.25
    for wrong in (b"0", b"-1", b"nan", b"inf", b"soon", b"1" * 40, b""):
        assert "x-request-timeout-ms" in refusal(document, SINGLE, {b"x-request-timeout-ms": wrong})


def test_single_output_is_written_as_bare_values():
    outputs = {"score": np.array([[0.1], [2.0]], np.float32)}
    assert tfs_rest.encode(outputs, tfs_rest.PredictOptions(True)) == b'{"predictions":[[0.1],[2.0]]}'
    assert tfs_rest.encode(outputs, tfs_rest.PredictOptions(False)) == b'{"outputs":[[0.1],[2.0]]}'


def test_several_outputs_are_written_as_objects():
    outputs = {"click": np.array([[0.5], [0.25]], np.float32), "topic": np.array([[1, 2], [3, 4]], np.float32)}
    assert json.loads(tfs_rest.encode(outputs, tfs_rest.PredictOptions(True))) == {
        "predictions": [{"click": [0.5], "topic": [1.0, 2.0]}, {"click": [0.25], "topic": [3.0, 4.0]}]
    }
    assert json.loads(tfs_rest.encode(outputs, tfs_rest.PredictOptions(False))) == {
        "outputs": {"click": [[0.5], [0.25]], "topic": [[1.0, 2.0], [3.0, 4.0]]}
    }


def test_non_finite_values_are_written_like_tensorflow_serving():
    outputs = {"score": np.array([[np.nan], [np.inf], [-np.inf], [0.1]], np.float32)}
    assert (
        tfs_rest.encode(outputs, tfs_rest.PredictOptions(True))
        == b'{"predictions":[[NaN],[Infinity],[-Infinity],[0.1]]}'
    )


def test_column_of_a_wider_matrix_can_be_written():
    wide = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert (
        tfs_rest.encode({"score": wide[:, 1:]}, tfs_rest.PredictOptions(True)) == b'{"predictions":[[1.0],[3.0],[5.0]]}'
    )


INT64S = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32)


@given(st.lists(st.tuples(INT64S, FLOATS, st.text(st.characters(codec="utf-8"), max_size=5)), min_size=1, max_size=20))
def test_client_values_reach_the_model_unchanged(rows):
    body = json.dumps({"instances": [{"user": u, "price": p, "city": c} for u, p, c in rows]}).encode()
    inputs, _ = tfs_rest.decode(body, {}, FLAT)
    assert inputs["user"].tolist() == [u for u, _, _ in rows]
    np.testing.assert_array_equal(inputs["price"], np.array([p for _, p, _ in rows], np.float32))
    assert inputs["city"].tolist() == [c.encode() for _, _, c in rows]


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=10))
def test_any_bytes_round_trip_as_base64(values):
    cities = [{"b64": base64.b64encode(v).decode()} for v in values]
    body = json.dumps({"inputs": {"user": [1], "price": [1], "city": cities}}).encode()
    inputs, _ = tfs_rest.decode(body, {}, FLAT)
    assert isinstance(inputs["city"], Strings)
    assert inputs["city"].tolist() == values


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20), st.booleans())
def test_model_outputs_reach_the_client_unchanged(rows, row_form):
    array = np.array(rows, np.float32)
    document = json.loads(tfs_rest.encode({"score": array}, tfs_rest.PredictOptions(row_form)))
    np.testing.assert_array_equal(np.array(document["predictions" if row_form else "outputs"], np.float32), array)


JSON = st.recursive(
    st.none() | st.booleans() | INT64S | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["ids", "floats", "user", "b64", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), JSON, max_size=2))
def test_arbitrary_json_is_decoded_or_refused_with_a_freshet_error(document):
    for manifest in (PACKED, FLAT, RAGGED, SINGLE, TWO_OUTPUTS):
        assert len(outcome(document, manifest)) < 1000


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_decoded_or_refused_with_a_freshet_error(body):
    with pytest.raises(FreshetError):
        tfs_rest.decode(body, {}, PACKED)


@pytest.mark.parametrize(
    ("document", "each"),
    [
        ({"instances": [1.0, 2.0]}, [3.0, 4.0]),
        ({"instances": [{"x": 1.0}, {"x": 2.0}]}, [3.0, 4.0]),
        ({"inputs": [1.0, 2.0]}, [3.0, 4.0]),
        ({"inputs": {"x": [1.0, 2.0]}}, [3.0, 4.0]),
        ({"inputs": {"x": [1.0, 2.0], "ignored": 3}}, [3.0, 4.0]),
        ({"inputs": {"x": [1.0, 2.0], "ignored": [[3]]}}, [3.0, 4.0]),
        ({"instances": [[1.0], [2.0]]}, [[3.0], [4.0]]),
        ({"instances": [{"x": [1.0]}, {"x": [2.0]}]}, [[3.0], [4.0]]),
        ({"inputs": {"x": [[1.0], [2.0]]}}, [[3.0], [4.0]]),
    ],
)
def test_output_follows_the_rank_of_the_request(document, each):
    inputs, options = decode(document, FOLLOWING)
    assert inputs["x"].reshape(-1).tolist() == [1.0, 2.0]
    outputs = {"each": np.array([[3], [4]], np.float32), "total": np.array([[5], [6]], np.float32)}
    reply = json.loads(tfs_rest.encode(outputs, options))
    if options.row:
        assert reply == {"predictions": [{"each": e, "total": t} for e, t in zip(each, [[5.0], [6.0]])]}
    else:
        assert reply == {"outputs": {"each": each, "total": [[5.0], [6.0]]}}
