import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.columns import Strings
from processor.errors import BadInput, FreshetError
from processor.package.manifest import Input
from serving.codecs import kserve
from tests.serving.fakes import FLAT, PACKED, RAGGED, SINGLE, TWO_OUTPUTS, manifest_of

LENGTH = b"inference-header-content-length"


def tensor(name, datatype, shape, data=None, nbytes=None):
    described = {"name": name, "datatype": datatype, "shape": shape}
    if nbytes is not None:
        described["parameters"] = {"binary_data_size": nbytes}
    else:
        described["data"] = data
    return described


def binary(tensors, buffers, pad=0, **more):
    header = json.dumps({"inputs": tensors, **more}).encode() + b" " * pad
    return header + b"".join(buffers), {LENGTH: b"%d" % len(header)}


def prefixed(values):
    return b"".join(len(v).to_bytes(4, "little") + v for v in values)


IDS = np.arange(6, dtype=np.int64).reshape(2, 3)
FLOATS = np.arange(4, dtype=np.float32).reshape(2, 2)
PACKED_JSON = [
    tensor("ids", "INT64", [2, 3], IDS.tolist()),
    tensor("floats", "FP32", [2, 2], FLOATS.ravel().tolist()),
]


def decode_json(manifest=PACKED, headers=None, **document):
    return kserve.decode(json.dumps(document).encode(), headers or {}, manifest)


def refusal(manifest=PACKED, headers=None, **document):
    with pytest.raises(BadInput) as caught:
        decode_json(manifest, headers, **document)
    return str(caught.value)


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


def test_an_aligned_binary_tensor_is_a_view_of_the_body():
    one_float, views = manifest_of([Input("x", "float32", 1)]), []
    for pad in range(8):
        body, headers = binary([tensor("x", "FP32", [1, 1], nbytes=4)], [b"\0\0\x80?"], pad)
        views.append(not kserve.decode(body, headers, one_float)[0]["x"].flags.owndata)
    assert any(views)


def test_json_and_binary_inputs_mix_and_n_by_1_counts_as_n():
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


def test_a_ragged_input_is_two_tensors():
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


def test_an_empty_tensor_may_be_of_any_type():
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("seen", "FP32", [0], []),
        tensor("seen.row_splits", "INT64", [2], [0, 0]),
    ]
    tensors += [tensor("tags", "INT64", [0], nbytes=0), tensor("tags.row_splits", "INT64", [2], [0, 0])]
    inputs, _ = kserve.decode(*binary(tensors, []), RAGGED)
    assert len(inputs["tags"].values) == len(inputs["seen"].values) == 0


@pytest.mark.parametrize("splits", [[], [1, 3], [0, 2], [0, 3, 2, 3], [0, 4]])
def test_row_splits_that_do_not_fit_are_refused(splits):
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
    assert "inputs[seen.row_splits]: values ascending from 0 to 3 wanted" in message


def changed(**fields):
    return [{**PACKED_JSON[0], **fields}, PACKED_JSON[1]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "a list of at most 2 tensors wanted"),
        ([1, 2, 3], "at most 2 tensors wanted, got 3"),
        ([1], "inputs[0]: an object with a name wanted"),
        (PACKED_JSON[:1], "floats is missing"),
        (changed(name="other"), "one of ids, floats, each once, wanted, got 'other'"),
        ([PACKED_JSON[0], PACKED_JSON[0]], "each once"),
        (changed(datatype="INT32"), "inputs[ids].datatype: INT64 wanted, got 'INT32'"),
        (changed(datatype=3), "INT64 wanted, got a number"),
        (changed(shape=[6]), "inputs[ids].shape: [n, 3] wanted, got [6]"),
        (changed(shape=[2, 4]), "[n, 3] wanted, got [2, 4]"),
        (changed(shape=[-2, -3]), "whole numbers"),
        (changed(shape=[2**40, 3]), "whole numbers"),
        (changed(shape=[True, 3]), "whole numbers"),
        (changed(shape="x"), "whole numbers"),
        (changed(shape=[3, 3]), "inputs[ids].data: 9 values wanted, got 6"),
        (changed(data=None), "inputs[ids].data: a list wanted, got null"),
        (changed(data=[[1, 2, 3], [4, 5]]), "rows of one length"),
        (changed(data=[[1, 2, 3], 4]), "rows of one length"),
        (changed(data=[1, 2, 3, 4, 5, 6.5]), "DT_INT64"),
        (changed(parameters=3), "inputs[ids].parameters: an object wanted"),
        (changed(parameters={"shared_memory_region": "x"}), "shared_memory_byte_size: a whole number"),
        (changed(parameters={"binary_data_size": 8}), "one of data, binary_data_size"),
    ],
)
def test_a_malformed_input_is_refused_by_name(inputs, message):
    assert message in refusal(inputs=inputs)


def test_binary_sizes_must_agree_with_shape_and_body():
    floats = tensor("floats", "FP32", [2, 2], FLOATS.tolist())
    for size, body_nbytes, message in (
        (40, 48, "48 wanted, got 40"),
        (48, 40, "0 to 40 wanted"),
        (48, 56, "binary tensors end at byte"),
        (-1, 48, "0 to 48 wanted"),
        (True, 48, "0 to 48 wanted"),
    ):
        body, headers = binary([tensor("ids", "INT64", [2, 3], nbytes=size), floats], [b"\0" * body_nbytes])
        with pytest.raises(BadInput, match=message):
            kserve.decode(body, headers, PACKED)


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"99999", b"1" * 30])
def test_a_header_length_beyond_the_body_is_refused(value):
    with pytest.raises(BadInput, match="inference-header-content-length: a whole number from 0 to 2"):
        kserve.decode(b"{}", {LENGTH: value}, PACKED)


def test_a_raw_binary_request_is_the_one_input_of_a_model():
    values = np.arange(6, dtype=np.float32)
    inputs, options = kserve.decode(values.tobytes(), {LENGTH: b"0"}, SINGLE)
    np.testing.assert_array_equal(inputs["x"], values.reshape(3, 2))
    assert options.outputs == (("score", True, None),)
    with pytest.raises(BadInput, match="body: a multiple of 8 bytes wanted, got 12"):
        kserve.decode(values[:3].tobytes(), {LENGTH: b"0"}, SINGLE)
    for manifest in (PACKED, manifest_of([Input("s", "string")]), manifest_of([Input("r", "int64", ragged=True)])):
        with pytest.raises(BadInput, match="0 is for a model of one input"):
            kserve.decode(values.tobytes(), {LENGTH: b"0"}, manifest)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_halves_become_float32(name):
    values = np.array([[0.5, -2.0], [1.5, 65504.0 if name == "FP16" else 2.0**100]], np.float32)
    raw = values.astype("<f2") if name == "FP16" else (values.view("<u4") >> 16).astype("<u2")
    tensors = [tensor("ids", "INT64", [2, 3], nbytes=48), tensor("floats", name, [2, 2], nbytes=8)]
    body, headers = binary(tensors, [IDS.tobytes(), raw.tobytes()])
    inputs, _ = kserve.decode(body, headers, PACKED)
    np.testing.assert_array_equal(inputs["floats"], values)
    assert inputs["floats"].dtype == np.float32
    listed = refusal(inputs=[PACKED_JSON[0], tensor("floats", name, [2, 2], [1, 2, 3, 4])])
    assert f"{name} is sent as a binary tensor only" in listed
    assert "inputs[ids].datatype: INT64 wanted" in refusal(inputs=[{**PACKED_JSON[0], "datatype": name}])


@pytest.mark.parametrize(
    ("raw", "count", "message"),
    [
        (b"\x01\0\0", 1, "length-prefixed"),
        (b"\x02\0\0\0a", 1, "element 0 reaches beyond"),
        (b"\xff\xff\xff\xffa", 1, "element 0 reaches beyond"),
        (b"\x01\0\0\0ab", 1, "1 elements fill 5 bytes, got 6"),
        (prefixed([b"ab", b"cd"])[:-1], 2, "element 1 reaches beyond"),
    ],
)
def test_a_bytes_tensor_that_does_not_fit_is_refused(raw, count, message):
    tensors = [
        tensor("user", "INT64", [1], [1]),
        tensor("price", "FP32", [1], [1]),
        tensor("city", "BYTES", [count], nbytes=len(raw)),
    ]
    body, headers = binary(tensors, [raw])
    with pytest.raises(BadInput, match=message):
        kserve.decode(body, headers, FLAT)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"id": 3}, "id: a string"),
        ({"id": "x" * 300}, "id: a string"),
        ({"parameters": []}, "parameters: an object wanted"),
        ({"parameters": {"timeout": "1"}}, "parameters.timeout"),
        ({"parameters": {"timeout": -1}}, "parameters.timeout"),
        ({"parameters": {"timeout": 1.5}}, "parameters.timeout"),
        ({"parameters": {"timeout": True}}, "parameters.timeout"),
        ({"parameters": {"timeout": 10**30}}, "parameters.timeout"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output: a boolean wanted"),
        ({"outputs": {}}, "outputs: a list"),
        ({"outputs": [{}, {}]}, "outputs: a list of at most 1"),
        ({"outputs": [3]}, "outputs[0]: an object with a name"),
        ({"outputs": [{"name": "other"}]}, "one of score, each once, wanted, got 'other'"),
        ({"outputs": [{"name": "score", "parameters": {"classification": 2}}]}, "classification: not served"),
        (
            {"outputs": [{"name": "score", "parameters": {"binary_data": "yes"}}]},
            "binary_data: a boolean wanted",
        ),
        ({"outputs": [{"name": "score", "parameters": {"shared_memory_region": 3}}]}, "shared_memory_region: a string"),
        (
            {"outputs": [{"name": "score", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
            "shared memory is not served",
        ),
        ({"parameters": {"priority": -1}}, "priority: a whole number"),
        ({"parameters": {"priority": 2**64}}, "priority: a whole number"),
    ],
)
def test_a_malformed_option_is_refused_by_name(document, message):
    assert message in refusal(inputs=PACKED_JSON, **document)


def test_the_shorter_of_two_timeouts_counts():
    header = {b"x-request-timeout-ms": b"20"}
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 5000})[1].timeout_s == 0.005
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 50000}, headers=header)[1].timeout_s == 0.02
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 0}, headers=header)[1].timeout_s == 0.02


def test_outputs_come_in_the_order_and_encoding_that_were_asked_for():
    _, options = decode_json(
        TWO_OUTPUTS,
        inputs=[tensor("user", "INT64", [2], [1, 2])],
        outputs=[{"name": "topic", "parameters": {"binary_data": False}}, {"name": "click"}],
        parameters={"binary_data_output": True},
    )
    outputs = {"click": np.array([[1], [2]], np.float32), "topic": np.array([[3, 4], [5, 6]], np.float32)}
    body, headers = kserve.encode(outputs, options, "ctr", 3)
    at = int(dict(headers)[b"inference-header-content-length"])
    document = json.loads(body[:at])
    assert document["model_name"] == "ctr"
    assert document["model_version"] == "3"
    assert document["outputs"] == [
        {"name": "topic", "datatype": "FP32", "shape": [2, 2], "data": [3.0, 4.0, 5.0, 6.0]},
        {"name": "click", "datatype": "FP32", "shape": [2, 1], "parameters": {"binary_data_size": 8}},
    ]
    assert body[at:] == outputs["click"].tobytes()


def test_a_reply_without_binary_outputs_is_json_alone():
    options = kserve.InferOptions((kserve.WantedOutput("score", False),), "q7")
    body, headers = kserve.encode({"score": np.array([[np.nan], [0.5]], np.float32)}, options, "ctr", 3)
    assert headers == ((b"content-type", b"application/json"),)
    assert b'"data":[NaN,0.5]' in body
    assert json.loads(body)["id"] == "q7"


@given(st.lists(st.binary(max_size=12), max_size=30), st.integers(0, 7))
def test_any_strings_survive_the_binary_layout(values, pad):
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
def test_any_bytes_tensor_is_decoded_or_refused_with_an_error_of_ours(raw, count):
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


@given(st.binary(max_size=200), st.none() | st.integers(0, 200))
def test_any_bytes_are_refused_with_an_error_of_ours(body, length):
    headers = {} if length is None else {LENGTH: b"%d" % length}
    with pytest.raises(FreshetError):
        kserve.decode(body, headers, PACKED)


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
def test_any_document_is_decoded_or_refused_with_an_error_of_ours(document):
    assert len(outcome(lambda: decode_json(RAGGED, **document))) < 1000


def test_a_header_seen_before_is_read_for_the_manifest_and_the_body_at_hand():
    floats = tensor("floats", "FP32", [2, 2], nbytes=16)
    first, headers = binary([tensor("ids", "INT64", [2, 3], nbytes=48), floats], [b"\1" * 48, b"\0" * 16])
    again, _ = binary([tensor("ids", "INT64", [2, 3], nbytes=48), floats], [b"\2" * 48, b"\0" * 16])
    ids = [kserve.decode(body, headers, PACKED)[0]["ids"] for body in (first, again)]
    assert (ids[0] == 0x0101010101010101).all()
    assert (ids[1] == 0x0202020202020202).all()
    for body in (first[:-1], first + b"x"):
        with pytest.raises(BadInput):
            kserve.decode(body, headers, PACKED)
    other = dataclasses.replace(PACKED, inputs=[Input("ids", "int64", columns=4), *PACKED.inputs[1:]])
    with pytest.raises(BadInput, match=r"inputs\[ids\].shape"):
        kserve.decode(first, headers, other)


def test_headers_that_hold_values_or_an_id_are_not_kept():
    kserve._kept.clear()
    floats = tensor("floats", "FP32", [1, 2], nbytes=8)
    with_values, headers = binary([tensor("ids", "INT64", [1, 3], data=[1, 2, 3]), floats], [b"\0" * 8])
    kserve.decode(with_values, headers, PACKED)
    body, headers = binary([tensor("ids", "INT64", [1, 3], nbytes=24), floats], [b"\0" * 32], id="7")
    assert kserve.decode(body, headers, PACKED)[1].id == "7"
    assert not kserve._kept


def test_few_headers_are_kept(monkeypatch):
    monkeypatch.setattr(kserve, "MAX_KEPT", 4)
    kserve._kept.clear()
    for rows in range(1, 10):
        sizes = [tensor("ids", "INT64", [rows, 3], nbytes=24 * rows), tensor("floats", "FP32", [1, 2], nbytes=8)]
        body, headers = binary(sizes, [b"\0" * (24 * rows + 8)])
        kserve.decode(body, headers, PACKED)
        assert len(kserve._kept) <= 4
