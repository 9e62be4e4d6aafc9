"""What requests say about kept users, as each protocol says it."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.features.user_calls import APPEND, PREPARE, REMOVE, REPLACE, SCORE, UserCall
from freshet_serving.processor.package import Input
from freshet_serving.serving.codecs.user_calls import (
    PARAMETERS,
    UserInputs,
    of_names,
    of_parameters,
    readable,
    take_from_document,
    without_reserved,
)
from tests.support.packages import manifest


@pytest.mark.parametrize(
    ("parameters", "call"),
    [
        ({}, None),
        ({"sequence_id": 0, "sequence_start": True}, None),
        ({"sequence_id": ""}, None),
        ({"sequence_id": 7}, UserCall(b"7")),
        ({"sequence_id": "7"}, UserCall(b"7")),
        ({"sequence_id": -3}, UserCall(b"-3")),
        ({"sequence_id": "é"}, UserCall("é".encode())),
        ({"sequence_id": 2**64 - 1, "sequence_start": True}, UserCall(b"%d" % (2**64 - 1), PREPARE)),
        ({"sequence_id": 1, "sequence_replace": True, "sequence_version": 5}, UserCall(b"1", REPLACE, expected=5)),
        ({"sequence_id": 1, "sequence_remove": True, "sequence_end": True}, UserCall(b"1", REMOVE, releases=True)),
        ({"sequence_id": 1, "sequence_start": False, "other": object()}, UserCall(b"1")),
    ],
)
def test_parameters_of_kserve(parameters, call):
    assert of_parameters(parameters) == call


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=300), st.lists(st.integers()))


@given(st.dictionaries(st.sampled_from(PARAMETERS), values))
def test_any_parameters_are_a_call_or_refused_without_the_id(parameters):
    told = ""
    try:
        call = of_parameters(parameters)
    except BadInput as error:
        told = str(error)
    if told:
        assert told.startswith("parameters")
        assert "expected" in told
    else:
        assert call is None or 1 <= len(call.id) <= 256


@pytest.mark.parametrize(
    ("signature", "call"),
    [
        ("prepare", UserCall(b"u", PREPARE)),
        ("append", UserCall(b"u", APPEND)),
        ("replace", UserCall(b"u", REPLACE)),
        ("remove", UserCall(b"u", REMOVE)),
        ("release", UserCall(b"u", SCORE, releases=True)),
        ("", UserCall(b"u")),
        ("serving_default", UserCall(b"u")),
    ],
)
def test_signatures_of_tensorflow_serving(signature, call):
    assert of_names(signature, {"sequence_id": b"u"}) == call
    assert without_reserved(signature) == (signature if signature == "serving_default" else "")


def test_document_keeps_what_is_not_about_the_user():
    document = {"signature_name": "append", "inputs": {"sequence_id": [["u"]], "sequence_version": 3, "x": [1]}}
    assert take_from_document(document, manifest()) == UserCall(b"u", APPEND, expected=3)
    assert document == {"signature_name": "", "inputs": {"x": [1]}}


@pytest.mark.parametrize("column", ["u", ["u", "u"], [["u"], ["u"]]])
def test_column_of_equal_ids_is_one_user(column):
    assert take_from_document({"inputs": {"sequence_id": column}}, manifest()) == UserCall(b"u")


DEEP = "[" * 1020 + "1" + "]" * 1020, '{"a":' * 1020 + "1" + "}" * 1020


@pytest.mark.parametrize("column", ['["u","v"]', '[["u"],["v"]]', *(f"[{deep},{deep}]" for deep in DEEP)])
def test_column_of_other_ids_is_refused_however_deeply_nested(column):
    refused = "sequence_id: expected (one value|the same in every row): a request is about one user"
    first, second = orjson.loads(column)
    rows = [{"sequence_id": first}, {"sequence_id": second}]
    for document in ({"inputs": {"sequence_id": [first, second]}}, {"instances": rows}):
        with pytest.raises(BadInput, match=refused):
            take_from_document(document, manifest())


def test_document_without_a_sequence_keeps_its_signature():
    document = {"signature_name": "prepare", "inputs": {"sequence_id": "", "x": [1]}}
    assert take_from_document(document, manifest()) is None
    assert document == {"signature_name": "prepare", "inputs": {"x": [1]}}


@pytest.mark.parametrize("inputs", [None, [], "x", {"x": 1}, 5])
def test_document_of_another_shape_is_left_to_the_codec(inputs):
    document = {"inputs": inputs}
    assert take_from_document(document, manifest()) is None
    assert document == {"inputs": inputs}


def test_input_of_that_name_is_the_models():
    made = manifest()
    made.inputs.append(Input("sequence_id", "string"))
    document = {"inputs": {"sequence_id": "u"}}
    assert take_from_document(document, made) is None
    assert document == {"inputs": {"sequence_id": "u"}}


def test_any_input_may_be_left_out_of_a_readable_manifest():
    made = manifest()
    assert readable(made) is readable(made)
    assert readable(made).expected_inputs({}) == []
    assert made.expected_inputs({}) == made.inputs
    for _ in range(100):
        readable(manifest())
    assert readable(made).inputs == made.inputs


def test_inputs_of_a_call_are_a_mapping_that_knows_it():
    call = UserCall(b"u")
    inputs = UserInputs({"x": 1}, call)
    assert (dict(inputs), inputs.call) == ({"x": 1}, call)
