"""What an infer request says of its tensors, read through serving.codecs.kserve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Strings
from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.serving.codecs import kserve
from freshet_serving.serving.codecs.kserve_header import decode_bytes, read_header
from tests.serving.codecs.infer_requests import FLOATS, IDS, PACKED_JSON, binary, decode_json, prefixed, refusal, tensor
from tests.serving.fakes import FLAT, PACKED, RAGGED, manifest_of


def outcome(decode):
    """The message of the FreshetError that decode() raises, or "" when it raises none."""
    try:
        decode()
    except FreshetError as error:
        return str(error)
    return ""


def test_json_data_may_be_nested_or_flat():
    inputs, options = decode_json(inputs=PACKED_JSON, id="q1")
    np.testing.assert_array_equal(inputs["ids"], IDS)
    np.testing.assert_array_equal(inputs["floats"], FLOATS)
    assert options == kserve.InferOptions((("score", False, None),), "q1")


@pytest.mark.parametrize("pad", range(8))
def test_binary_tensors_follow_the_json_at_any_alignment(pad):
    tensors = [tensor("ids", "INT64", [2, 3], nbytes=48), tensor("floats", "FP32", [2, 2], nbytes=16)]
    body, headers = binary(tensors, [IDS.tobytes(), FLOATS.tobytes()], pad)
    inputs, _ = kserve.decode(body, headers, PACKED)
    np.testing.assert_array_equal(inputs["ids"], IDS)
    np.testing.assert_array_equal(inputs["floats"], FLOATS)
    assert inputs["ids"].flags.aligned


def test_aligned_binary_tensor_is_a_view_of_the_body():
    one_float, views = manifest_of([Input("x", "float32", 1)]), []
    for pad in range(8):
        body, headers = binary([tensor("x", "FP32", [1, 1], nbytes=4)], [b"\0\0\x80?"], pad)
        views.append(not kserve.decode(body, headers, one_float)[0]["x"].flags.owndata)
    assert any(views)


def test_json_and_binary_inputs_mix_with_column_vectors_accepted():
    tensors = [
        tensor("user", "INT64", [2, 1], [1, 2]),
        tensor("price", "FP32", [1], nbytes=4),
        tensor("city", "BYTES", [2, 1], nbytes=11),
    ]
    body, headers = binary(tensors, [np.float32(2.5).tobytes(), prefixed([b"", b"abc"])])
    inputs, _ = kserve.decode(body, headers, FLAT)
    assert inputs["user"].tolist() == [1, 2]
    assert inputs["price"].tolist() == [2.5]
    assert inputs["city"].tolist() == [b"", b"abc"]


def test_ragged_input_is_two_tensors():
    tensors = [
        tensor("user", "INT64", [2], [1, 2]),
        tensor("seen", "INT64", [3], nbytes=24),
        tensor("seen.row_splits", "INT64", [3], nbytes=24),
        tensor("tags", "BYTES", [1], ["a"]),
        tensor("tags.row_splits", "INT64", [3], [0, 0, 1]),
    ]
    body, headers = binary(tensors, [np.array([7, 8, 9]).tobytes(), np.array([0, 2, 3]).tobytes()])
    inputs, _ = kserve.decode(body, headers, RAGGED)
    assert inputs["seen"].values.tolist() == [7, 8, 9]
    assert inputs["seen"].row_splits.tolist() == [0, 2, 3]
    assert inputs["tags"].values.tolist() == [b"a"]


def test_empty_tensor_may_have_any_type():
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("seen", "FP32", [0], []),
        tensor("seen.row_splits", "INT64", [2], [0, 0]),
    ]
    tensors += [tensor("tags", "INT64", [0], nbytes=0), tensor("tags.row_splits", "INT64", [2], [0, 0])]
    inputs, _ = kserve.decode(*binary(tensors, []), RAGGED)
    assert len(inputs["tags"].values) == len(inputs["seen"].values) == 0


@pytest.mark.parametrize("splits", [[], [1, 3], [0, 2], [0, 3, 2, 3], [0, 4]])
def test_invalid_row_splits_are_refused(splits):
    message = refusal(
        RAGGED,
        inputs=[
            tensor("user", "INT64", [1], [1]),
            tensor("seen", "INT64", [3], [1, 2, 3]),
            tensor("seen.row_splits", "INT64", [len(splits)], splits),
            tensor("tags", "BYTES", [0], []),
            tensor("tags.row_splits", "INT64", [2], [0, 0]),
        ],
    )
    assert "inputs[seen.row_splits]: expected values ascending from 0 to 3" in message


@pytest.mark.parametrize(
    ("document", "plain"),
    [
        ({"parameters": {"binary_data_output": True}}, True),
        ({"parameters": {"binary_data_output": True}, "id": ""}, True),
        ({"parameters": {"binary_data_output": True}, "id": "q1"}, False),
        ({}, False),
    ],
)
def test_reply_with_outputs_only_is_recognised(document, plain):
    header = read_header({"inputs": PACKED_JSON, **document}, PACKED, DEFAULTS)
    assert header.plain is plain


def changed(**fields):
    return [{**PACKED_JSON[0], **fields}, PACKED_JSON[1]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "expected a list of at most 2 tensors"),
        (
            [*PACKED_JSON, {**PACKED_JSON[0], "name": "color"}],
            "unexpected inference input 'color' for model 'ctr': inputs[2]: expected one",
        ),
        ([1], "inputs[0]: expected an object with a name"),
        (PACKED_JSON[:1], "floats is missing"),
        (
            changed(name="other"),
            "unexpected inference input 'other' for model 'ctr': inputs[0]: expected one of ids, floats, each once",
        ),
        ([PACKED_JSON[0], PACKED_JSON[0]], "each once"),
        (changed(datatype="FP32"), "inputs[ids].datatype: expected INT64, got 'FP32'"),
        (changed(datatype=3), "expected INT64, got a number"),
        (changed(shape=[6]), "inputs[ids].shape: expected [n, 3], got [6]"),
        (changed(shape=[2, 4]), "expected [n, 3], got [2, 4]"),
        (changed(shape=[-2, -3]), "whole numbers"),
        (changed(shape=[2**40, 3]), "whole numbers"),
        (changed(shape=[True, 3]), "whole numbers"),
        (changed(shape="x"), "whole numbers"),
        (changed(shape=[3, 3]), "inputs[ids].data: expected 9 values, got 6"),
        (changed(data=None), "inputs[ids].data: expected a list, got null"),
        (changed(data=[[1, 2, 3], [4, 5]]), "rows of one length"),
        (changed(data=[[1, 2, 3], 4]), "rows of one length"),
        (changed(data=[1, 2, 3, 4, 5, 6.5]), "DT_INT64"),
        (changed(parameters=3), "inputs[ids].parameters: expected an object"),
        (changed(parameters={"shared_memory_region": "x"}), "shared_memory_byte_size: expected a whole number"),
        (
            changed(parameters={"shared_memory_region": "x", "shared_memory_byte_size": 2**63}),
            f"shared_memory_byte_size: expected a whole number from 0 to {2**63 - 1}",
        ),
        (changed(parameters={"binary_data_size": 8}), "one of data, binary_data_size"),
    ],
)
def test_malformed_input_is_refused_by_name(inputs, message):
    assert message in refusal(inputs=inputs)


def test_binary_sizes_must_match_shape_and_body():
    floats = tensor("floats", "FP32", [2, 2], FLOATS.tolist())
    for size, body_nbytes, message in (
        (40, 48, "expected 48, got 40"),
        (48, 40, "expected 0 to 40"),
        (48, 56, "binary tensors end at byte"),
        (-1, 48, "expected 0 to 48"),
        (True, 48, "expected 0 to 48"),
    ):
        body, headers = binary([tensor("ids", "INT64", [2, 3], nbytes=size), floats], [b"\0" * body_nbytes])
        with pytest.raises(BadInput, match=message):
            kserve.decode(body, headers, PACKED)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_half_precision_tensors_become_float32(name):
    values = np.array([[0.5, -2.0], [1.5, 65504.0 if name == "FP16" else 2.0**100]], np.float32)
    raw = values.astype("<f2") if name == "FP16" else (values.view("<u4") >> 16).astype("<u2")
    tensors = [tensor("ids", "INT64", [2, 3], nbytes=48), tensor("floats", name, [2, 2], nbytes=8)]
    body, headers = binary(tensors, [IDS.tobytes(), raw.tobytes()])
    inputs, _ = kserve.decode(body, headers, PACKED)
    np.testing.assert_array_equal(inputs["floats"], values)
    assert inputs["floats"].dtype == np.float32
    listed = refusal(inputs=[PACKED_JSON[0], tensor("floats", name, [2, 2], [1, 2, 3, 4])])
    assert f"{name} must be sent as a binary tensor" in listed
    assert "inputs[ids].datatype: expected INT64" in refusal(inputs=[{**PACKED_JSON[0], "datatype": name}])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"id": 3}, "id: expected a string"),
        ({"id": "x" * 300}, "id: expected a string"),
        ({"parameters": []}, "parameters: expected an object"),
        ({"parameters": {"timeout": "1"}}, "parameters.timeout"),
        ({"parameters": {"timeout": -1}}, "parameters.timeout"),
        ({"parameters": {"timeout": 1.5}}, "parameters.timeout"),
        ({"parameters": {"timeout": True}}, "parameters.timeout"),
        ({"parameters": {"timeout": 10**30}}, "parameters.timeout"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output: expected a boolean"),
        ({"outputs": {}}, "outputs: expected a list"),
        ({"outputs": [{}, {}]}, "outputs: expected a list of at most 1"),
        ({"outputs": [3]}, "outputs[0]: expected an object with a name"),
        ({"outputs": [{"name": "other"}]}, "expected one of score, each once, got 'other'"),
        ({"outputs": [{"name": "score", "parameters": {"classification": 2}}]}, "classification: not served"),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": "yes"}}]}, "binary_data: expected a boolean"),
        (
            {"outputs": [{"name": "score", "parameters": {"shared_memory_region": 3}}]},
            "shared_memory_region: expected a string",
        ),
        (
            {"outputs": [{"name": "score", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
            "shared memory is not served",
        ),
        ({"parameters": {"priority": -1}}, "priority: expected a whole number"),
        ({"parameters": {"priority": 2**64}}, "priority: expected a whole number"),
    ],
)
def test_malformed_option_is_refused_by_name(document, message):
    assert message in refusal(inputs=PACKED_JSON, **document)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["binary_data_size", "binary_data", "timeout"]), inner, max_size=3)
    ),
    max_leaves=8,
)

TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["user", "seen", "seen.row_splits", "tags", "tags.row_splits", "x"]) | VALUES,
        "datatype": st.sampled_from(["INT64", "FP32", "BYTES"]) | VALUES,
        "shape": st.lists(st.integers(0, 4), max_size=2) | VALUES,
        "data": st.lists(st.integers(0, 4), max_size=4) | VALUES,
        "parameters": VALUES,
    },
)


@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(TENSORS, max_size=6) | VALUES}, optional={"outputs": VALUES, "parameters": VALUES}
    )
)
def test_arbitrary_document_is_decoded_or_refused_with_a_freshet_error(document):
    assert len(outcome(lambda: decode_json(RAGGED, **document))) < 1000


@pytest.mark.parametrize(
    ("raw", "count", "message"),
    [
        (b"\x01\0\0", 1, "length-prefixed"),
        (b"\x02\0\0\0a", 1, "element 0 extends beyond"),
        (b"\xff\xff\xff\xffa", 1, "element 0 extends beyond"),
        (b"\x01\0\0\0ab", 1, "1 elements fill 5 bytes, got 6"),
        (prefixed([b"ab", b"cd"])[:-1], 2, "element 1 extends beyond"),
    ],
)
def test_mismatched_bytes_tensor_is_refused(raw, count, message):
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [count], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw])
    with pytest.raises(BadInput, match=message):
        kserve.decode(body, headers, FLAT)


@given(st.lists(st.binary(max_size=12), max_size=30), st.integers(0, 7))
def test_any_strings_round_trip_through_the_binary_layout(values, pad):
    raw = prefixed(values)
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [len(values)], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw], pad)
    city = kserve.decode(body, headers, FLAT)[0]["city"]
    assert isinstance(city, Strings)
    assert city.tolist() == values


@given(st.binary(max_size=120), st.integers(0, 40))
def test_arbitrary_bytes_tensor_is_decoded_or_refused_with_freshet_error(raw, count):
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [count], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw])
    try:
        city = kserve.decode(body, headers, FLAT)[0]["city"]
    except FreshetError:
        return
    assert prefixed(city.tolist()) == raw


def test_element_overlapping_the_next_length_is_refused():
    """The 8 bytes are enough for two lengths; the first one says that it is followed by what should be the second."""
    with pytest.raises(BadInput, match="element 0 extends beyond the tensor's 8 bytes"):
        decode_bytes(np.frombuffer(b"\4\0\0\0abcd", np.uint8), 2, "city")


@pytest.mark.parametrize(("length", "copied"), [(300_000, True), (10, False)], ids=["long", "short"])
def test_numbers_beside_long_strings_do_not_keep_the_body(length, copied):
    raw = prefixed([b"a" * length])
    tensors = [
        tensor("user", "INT64", [1], nbytes=8),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [1], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [np.array([7]).tobytes(), raw])
    # The JSON before a tensor may end anywhere, and a tensor that is not aligned is copied in any case.
    at = len(body) - len(raw) - 8
    aligned = np.zeros(len(body) + 8, np.uint8)
    begin = -(aligned.ctypes.data + at) % 8
    aligned[begin : begin + len(body)] = np.frombuffer(body, np.uint8)
    memory = aligned[begin : begin + len(body)]
    inputs, _ = kserve.decode(memory.data, headers, FLAT)
    assert inputs["user"].tolist() == [7]
    assert np.shares_memory(inputs["user"], memory) != copied
