import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, FreshetError
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.serving.codecs import kserve, kserve_header
from freshet_serving.serving.codecs.wire import MAX_DIGITS
from tests.serving.codecs.infer_requests import LENGTH, PACKED_JSON, binary, decode_json, tensor
from tests.serving.fakes import PACKED, SINGLE, TWO_OUTPUTS, manifest_of


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"99999", b"1" * 30])
def test_header_length_beyond_the_body_is_refused(value):
    with pytest.raises(BadInput, match="inference-header-content-length: expected a whole number from 0 to 2"):
        kserve.decode(b"{}", {LENGTH: value}, PACKED)


def test_json_length_comes_from_a_plausible_header():
    for digits, wanted in ((2, 12), (MAX_DIGITS, 12), (MAX_DIGITS + 1, 100)):
        headers = {kserve.HEADER_LENGTH: b"12".rjust(digits, b"0")}
        assert kserve.parsed_nbytes(100, headers) == wanted
    for text in (b"", b"-1", b"1e3", b"9999"):
        assert kserve.parsed_nbytes(100, {kserve.HEADER_LENGTH: text}) == 100


def test_raw_binary_request_is_the_only_input_of_a_model():
    values = np.arange(6, dtype=np.float32)
    inputs, options = kserve.decode(values.tobytes(), {LENGTH: b"0"}, SINGLE)
    np.testing.assert_array_equal(inputs["x"], values.reshape(3, 2))
    assert options.outputs == (("score", True, None),)
    with pytest.raises(BadInput, match="body: expected a multiple of 8 bytes, got 12"):
        kserve.decode(values[:3].tobytes(), {LENGTH: b"0"}, SINGLE)
    for manifest in (PACKED, manifest_of([Input("s", "string")]), manifest_of([Input("r", "int64", ragged=True)])):
        with pytest.raises(BadInput, match="0 requires a model with one"):
            kserve.decode(values.tobytes(), {LENGTH: b"0"}, manifest)


def test_shorter_of_two_timeouts_applies():
    header = {b"x-request-timeout-ms": b"20"}
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 5000})[1].timeout_s == 0.005
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 50000}, headers=header)[1].timeout_s == 0.02
    assert decode_json(inputs=PACKED_JSON, parameters={"timeout": 0}, headers=header)[1].timeout_s == 0.02


def test_outputs_have_the_requested_order_and_encoding():
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


def test_reply_without_binary_outputs_is_pure_json():
    options = kserve.InferOptions((kserve.RequestedOutput("score", False),), "q7")
    body, headers = kserve.encode({"score": np.array([[np.nan], [0.5]], np.float32)}, options, "ctr", 3)
    assert headers == ((b"content-type", b"application/json"),)
    assert b'"data":[NaN,0.5]' in body
    assert json.loads(body)["id"] == "q7"


@given(st.binary(max_size=200), st.none() | st.integers(0, 200))
def test_arbitrary_bytes_are_refused_with_a_freshet_error(body, length):
    headers = {} if length is None else {LENGTH: b"%d" % length}
    with pytest.raises(FreshetError):
        kserve.decode(body, headers, PACKED)


def test_cached_header_is_checked_against_manifest_and_body():
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


def test_headers_with_values_or_an_id_are_not_cached():
    kserve._kept.clear()
    floats = tensor("floats", "FP32", [1, 2], nbytes=8)
    with_values, headers = binary([tensor("ids", "INT64", [1, 3], data=[1, 2, 3]), floats], [b"\0" * 8])
    kserve.decode(with_values, headers, PACKED)
    body, headers = binary([tensor("ids", "INT64", [1, 3], nbytes=24), floats], [b"\0" * 32], id="7")
    assert kserve.decode(body, headers, PACKED)[1].id == "7"
    assert not kserve._kept


def test_header_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(kserve, "MAX_KEPT", 4)
    kserve._kept.clear()
    for rows in range(1, 10):
        sizes = [tensor("ids", "INT64", [rows, 3], nbytes=24 * rows), tensor("floats", "FP32", [1, 2], nbytes=8)]
        body, headers = binary(sizes, [b"\0" * (24 * rows + 8)])
        kserve.decode(body, headers, PACKED)
        assert len(kserve._kept) <= 4


@pytest.mark.parametrize(("room", "fits"), [(7, False), (8, True), (16, True)])
def test_output_is_written_to_shared_memory_only_if_it_fits(room, fits):
    written = []
    memory = SimpleNamespace(write=lambda span, data: written.append((span, data)))
    scores = np.array([[0.25], [0.5]], np.float32)
    wanted = kserve.RequestedOutput("score", False, kserve_header.RegionSpan("r", 24, room))
    options = kserve.InferOptions((wanted,))
    if fits:
        kserve.encode({"score": scores}, options, "ctr", 3, memory)
        assert written == [(wanted.span, scores.tobytes())]
    else:
        with pytest.raises(BadInput, match=r"outputs\[score\].*shared_memory_byte_size: expected 8, got 7"):
            kserve.encode({"score": scores}, options, "ctr", 3, memory)
        assert written == []
