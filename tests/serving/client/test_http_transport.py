import socket

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import FreshetError, NotFound, NotReady, Overloaded
from freshet_serving.serving.client.arrays import tensors
from freshet_serving.serving.client.http_transport import HEADER_LENGTH, HttpTransport, decode, encode
from freshet_serving.serving.client.prediction import ClientCall
from freshet_serving.serving.client.retry import ConnectionLost


def reply(outputs, data, **others):
    header = orjson.dumps({"model_name": "ctr", "model_version": "3", "outputs": outputs})
    return {HEADER_LENGTH: str(len(header)), "x-model-generation": "3.17", **others}, header + data


def score(nbytes=8, **others):
    return {"name": "score", "datatype": "FP32", "shape": [2, 1], "parameters": {"binary_data_size": nbytes}} | others


def test_call_is_sent_as_a_binary_infer_request():
    call = ClientCall("a b", 3, tensors({"x": [1, 2]}), ("score",), (("x-sticky-key", "ann"),))
    path, headers, body = encode(call, 0.05)
    assert path == "/v2/models/a%20b/versions/3/infer"
    assert headers["x-request-timeout-ms"] == "50.000"
    assert headers["x-sticky-key"] == "ann"
    at = int(headers[HEADER_LENGTH])
    assert orjson.loads(body[:at]) == {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}],
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "score", "parameters": {"binary_data": True}}],
    }
    assert np.frombuffer(body[at:], "<i8").tolist() == [1, 2]


def test_request_without_a_deadline_sends_none():
    assert "x-request-timeout-ms" not in encode(ClientCall("m", None, [], (), ()), None)[1]


def test_reply_becomes_a_prediction():
    prediction = decode(200, *reply([score()], np.array([0.25, 0.5], "<f4").tobytes()))
    assert (prediction.model, prediction.version, prediction.generation) == ("ctr", 3, "3.17")
    assert prediction.scores().tolist() == [0.25, 0.5]
    assert prediction.outputs["score"].shape == (2, 1)


def test_server_errors_are_raised_as_their_types():
    with pytest.raises(NotFound, match="no such model"):
        decode(404, {}, b'{"error": "no such model"}')
    with pytest.raises(Overloaded) as caught:
        decode(429, {"retry-after": "2"}, b'{"error": "full"}')
    assert caught.value.retry_after_s == 2.0
    with pytest.raises(NotReady, match="answered 503"):
        decode(503, {}, b"<html>")
    with pytest.raises(FreshetError, match="answered 502"):
        decode(502, {"retry-after": "soon"}, b'{"error": 7}')


@pytest.mark.parametrize(
    ("outputs", "data"),
    [
        ([score(12)], bytes(8)),
        ([score(-1)], bytes(8)),
        ([score(8, shape=[3, 1])], bytes(8)),
        ([score(8, shape=[-2, -1])], bytes(8)),
        ([score(8, shape=[2**62])], bytes(8)),
        ([score(8, datatype="FP64")], bytes(8)),
        ([score(8, parameters={})], bytes(8)),
        ([score(8, shape="x")], bytes(8)),
        ({"score": 1}, bytes(8)),
    ],
)
def test_replies_with_inconsistent_parts_are_refused(outputs, data):
    with pytest.raises(FreshetError, match="reply"):
        decode(200, *reply(outputs, data))


@given(st.binary(max_size=80), st.sampled_from(["", "0", "5", "80", "-1", "99999999999", "x"]))
def test_arbitrary_reply_bytes_are_refused_cleanly(body, length):
    with pytest.raises(FreshetError):
        decode(200, {HEADER_LENGTH: length}, body)


def test_unreachable_server_error_names_its_address():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        transport = HttpTransport(address, 1, False)
        with pytest.raises(ConnectionLost) as caught:
            transport.send(ClientCall("ctr", None, [], (), ()), 5.0)
        transport.close()
    assert str(caught.value) == f"{address}: Connection refused; is freshet serve running there?"
