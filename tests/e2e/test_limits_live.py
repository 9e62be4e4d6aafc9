"""Small requests that would cost much, sent to a live server by every way there is: each is answered at once by the
name of the limit, the server's memory stays where it was, and others are answered as before."""

import gzip
import json
import re
import zlib
from pathlib import Path

import grpc
import numpy as np
import pytest

from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.serving.codecs.kserve import HEADER_LENGTH
from freshet_serving.serving.codecs.messages import message
from tests.e2e.asking import INFER, PREDICT
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import write_package

pytestmark = [pytest.mark.e2e, pytest.mark.long]

INPUTS = {"user": [0, 1], "tags": [["a"], []], "floats": [[0.1, 0.2, 0.3, 0.4]]}
REST, EXAMPLES, DEEPREC = (f"/v1/models/small:{method}" for method in ("predict", "classify", "processor"))
KSERVE = "/v2/models/small/infer"
CONFIG = """
[model.small]
max_ids = 3000000
"""
# Of a process that has begun to answer, with everything that it keeps for next time.
MOST_MEMORY_KB = 300 << 10
GZIP, DEFLATE = {"content-encoding": "gzip"}, {"content-encoding": "deflate"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("limits")
    write_package(tmp / "repository", users=range(6))
    (tmp / "serve.toml").write_text(CONFIG)
    options = ("--config", str(tmp / "serve.toml"), *ALONE)
    with LiveServer(tmp / "repository", *options, log=tmp / "serve.log") as live:
        live.predict("small", INPUTS)
        yield live


def peak_kb(server):
    """The most memory that the server has held since the last call."""
    about = Path(f"/proc/{server.process.pid}")
    status = (about / "status").read_text()
    (about / "clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])


@pytest.fixture(autouse=True)
def the_server_is_as_it_was(server):
    """After each case: others are answered, and no more memory was held meanwhile than any request may take."""
    before = server.predict("small", INPUTS)
    peak_kb(server)
    held = peak_kb(server)
    yield
    assert server.predict("small", INPUTS) == before
    assert peak_kb(server) - held < MOST_MEMORY_KB


def columns(**inputs):
    """A body of TensorFlow Serving's columns, of texts."""
    given = {"user": "[1]", "tags": "[[]]", "floats": "[[1,2,3,4]]", **inputs}
    return ('{"inputs":{' + ",".join(f'"{name}":{text}' for name, text in given.items()) + "}}").encode()


def many(text, count):
    return "[" + ",".join([text] * count) + "]"


def binary(tensors, data=b""):
    """A body of KServe's binary tensors, and its headers. tensors: name, datatype, shape and bytes of each."""
    described = [
        {"name": n, "datatype": t, "shape": s, "parameters": {"binary_data_size": size}} for n, t, s, size in tensors
    ]
    header = json.dumps({"inputs": described}).encode()
    return header + data, {HEADER_LENGTH.decode(): str(len(header))}


def ids_beyond(count):
    """One row of so many ids, broadcast to the rows of the others, which are there."""
    tensors = [
        ("user", "INT64", [1], 8), ("tags", "BYTES", [count], 4 * count),
        ("tags.row_splits", "INT64", [2], 16), ("floats", "FP32", [1, 4], 16),
    ]  # fmt: skip
    data = bytes(8) + bytes(4 * count) + np.array([0, count]).tobytes() + bytes(16)
    return binary(tensors, data)


def nested(*numbers, data):
    """Bytes in a field of a message in a field of a message."""
    for number in reversed(numbers):
        nbytes, length = len(data), b""
        while nbytes >= 128:
            nbytes, length = nbytes >> 7, length + bytes([nbytes & 127 | 128])
        data = bytes([number << 3 | 2]) + length + bytes([nbytes]) + data
    return data


def eas_rows(count):
    made = eas.Request()
    made.inputs["user"].dtype = 9
    made.inputs["user"].array_shape.dim.append(count)
    made.inputs["user"].int64_val.extend([1] * count)
    for name, dtype in (("tags", 7), ("floats", 1)):
        made.inputs[name].dtype = dtype
    return made.SerializeToString()


# Made when they are sent: all together take seconds and hundreds of megabytes, which collecting need not.
HTTP = {
    "gzip of a million rows": lambda: (
        REST, gzip.compress(columns(floats=many("[1,2,3,4]", 1_200_000))), GZIP, "max_inflation",
    ),
    "gzip of lists of nothing": lambda: (
        REST, gzip.compress(columns(tags=many("[]", 5_000_000))), GZIP, "max_inflation",
    ),
    "gzip of a little more than is free": lambda: (REST, gzip.compress(bytes(300_000)), GZIP, "max_inflation"),
    "deflate of zeros": lambda: (KSERVE, zlib.compress(bytes(40 << 20)), DEFLATE, "max_inflation"),
    "gzip of binary zeros": lambda: (KSERVE, gzip.compress(bytes(40 << 20)), GZIP, "max_inflation"),
    "gzip of half of it noise": lambda: (
        REST, gzip.compress(np.random.default_rng(0).bytes(200_000) + b"[]," * 6_000_000), GZIP, "max_json_bytes",
    ),
    "lists of nothing": lambda: (REST, columns(tags=many("[]", 1_300_000)), {}, "max_nodes"),
    "rows of nothing": lambda: (REST, b'{"instances":' + many("{}", 1_300_000).encode() + b"}", {}, "max_nodes"),
    "lists within the nodes": lambda: (REST, columns(tags=many("[]", 900_000)), {}, "max_rows"),
    "nesting": lambda: (REST, b'{"inputs":' + b"[" * 4_000_000, {}, "max_nodes"),
    "nesting within the nodes": lambda: (
        REST, b'{"inputs":' + b"[" * 900_000 + b"]" * 900_000 + b"}", {}, "JSON Parse error",
    ),
    "nothing but NaN": lambda: (REST, columns(user=many("NaN", 3_900_000)), {}, "max_nodes"),
    "NaN within the nodes": lambda: (REST, columns(user=many("NaN", 1_300_000)), {}, "max_rows"),
    "NaN in lists": lambda: (REST, columns(user=many("[NaN]", 560_000)), {}, "max_rows"),
    "strings": lambda: (REST, columns(tags="[" + many('"ab"', 1_999_000) + "]"), {}, "200"),
    "numbers for strings": lambda: (
        REST, columns(tags="[" + many("12345", 2_600_000) + "]"), {}, "not of expected type",
    ),
    "JSON": lambda: (REST, columns(floats=many("[1.5,2.5,3.5,4.5]", 1_000_000)), {}, "max_json_bytes"),
    "rows": lambda: (
        REST, columns(user=many("1", 65_537)), {}, "max_rows: expected at most 65536 rows per request, got 65537",
    ),
    "rows as instances": lambda: (REST, b'{"instances":' + many('{"user":1}', 65_537).encode() + b"}", {}, "max_rows"),
    "examples": lambda: (EXAMPLES, b'{"examples":' + many("{}", 65_537).encode() + b"}", {}, "max_rows"),
    "names": lambda: (
        REST, columns(**{f"n{n}": "0" for n in range(600_000)}), {}, "200",
    ),
    "KServe, JSON": lambda: (
        KSERVE, b'{"inputs":[{"name":"user","datatype":"INT64","shape":[70000],"data":[]}]}', {}, "max_rows",
    ),
    "KServe, JSON header of a binary body": lambda: (
        KSERVE, b"[" + b"0," * (9 << 20), {HEADER_LENGTH.decode(): str(18 << 20)}, "max_json_bytes",
    ),
    "KServe, binary": lambda: (KSERVE, *binary([("user", "INT64", [8_000_000], 64_000_000)]), "max_rows"),
    "KServe, 8 million strings of one row": lambda: (
        KSERVE, *ids_beyond(8_000_000), "max_ids: expected at most 3000000",
    ),
    "DeepRec": lambda: (DEEPREC, eas_rows(65_537), {}, "max_rows"),
    "DeepRec, messages of nothing": lambda: (DEEPREC, b"\x12\x00" * 2_000_000, {}, "max_nodes"),
    "DeepRec, numbers of one byte": lambda: (DEEPREC, nested(2, 2, 7, data=b"\1" * 4_100_000), {}, "max_nodes"),
}  # fmt: skip


@pytest.mark.parametrize("case", HTTP)
def test_http_request_over_a_limit_names_the_limit(server, case):
    path, body, headers, wanted = HTTP[case]()
    status, _, reply = server.request("POST", path, body, headers)
    if wanted == "200":
        assert status == 200, reply[:300]
        return
    assert status == (413 if wanted.startswith("max_") else 400), reply[:300]
    assert wanted in json.loads(reply)["error"]
    assert len(reply) < 1000


def infer_shape(rows):
    made = message("inference.ModelInferRequest")(model_name="small")
    made.inputs.add(name="user", datatype="INT64", shape=[rows])
    made.raw_input_contents.append(b"")
    return made.SerializeToString()


def infer_typed(count):
    """Numbers of one byte each."""
    tensor = message("inference.ModelInferRequest.InferInputTensor")(name="user", datatype="INT64", shape=[count])
    contents = nested(5, 3, data=bytes(count))
    made = message("inference.ModelInferRequest")(model_name="small")
    return made.SerializeToString() + nested(5, data=tensor.SerializeToString() + contents)


def predict_shape(*shape):
    """Zeros, as many as the shape says, of a few bytes."""
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name = "small"
    for name, dtype in (("user", 9), ("tags", 7), ("floats", 1)):
        made.inputs[name].dtype = dtype
        for size in shape if name == "tags" else (1,):
            made.inputs[name].tensor_shape.dim.add(size=size)
    return made.SerializeToString()


def classify_examples(count):
    made = message("tensorflow.serving.ClassificationRequest")()
    made.model_spec.name = "small"
    for _ in range(count):
        made.input.example_list.examples.add()
    return made.SerializeToString()


CLASSIFY, MULTI = (f"/tensorflow.serving.PredictionService/{name}" for name in ("Classify", "MultiInference"))
READY = "/inference.GRPCInferenceService/ModelReady"
RPC = {
    "KServe, rows": lambda: (INFER, infer_shape(65_537), "max_rows"),
    "KServe, messages of nothing": lambda: (INFER, b"\x2a\x00" * 2_000_000, "max_nodes"),
    "KServe, messages of nothing within the nodes": lambda: (INFER, b"\x0a\x05small" + b"\x2a\x00" * 900_000, "inputs"),
    "KServe, numbers": lambda: (INFER, infer_typed(4_100_000), "max_nodes"),
    "KServe, numbers within the nodes": lambda: (INFER, infer_typed(3_900_000), "max_rows"),
    "KServe, a group that hides": lambda: (
        INFER, b"\xfb\x06\x12\x01\xff\xfc\x06" + b"\x2a\x00" * 2_000_000, "max_nodes",
    ),
    "TensorFlow Serving, zeros of nothing": lambda: (PREDICT, predict_shape(2**31 - 1, 1), "max_rows"),
    "TensorFlow Serving, ids of nothing": lambda: (PREDICT, predict_shape(1, 2**31 - 1), "max_ids"),
    "TensorFlow Serving, rows of nothing": lambda: (PREDICT, predict_shape(2**31 - 1, 0), "max_rows"),
    "TensorFlow Serving, entries": lambda: (PREDICT, b"\x12\x00" * 2_000_000, "max_nodes"),
    "TensorFlow Serving, names": lambda: (
        PREDICT, b"\x0a\x07\x0a\x05small" + b"\x1a\x01a" * 1_900_000, "input size does not match signature",
    ),
    "Classify": lambda: (CLASSIFY, classify_examples(65_537), "max_rows"),
    "MultiInference": lambda: (MULTI, b"\x0a\x00" * 500_000, "tasks: expected at most 64, got 500000"),
    "a long question": lambda: (READY, bytes(2 << 20), "at most 1048576 bytes"),
}  # fmt: skip


@pytest.fixture(scope="module")
def channel(server):
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        yield channel


@pytest.mark.parametrize("case", RPC)
def test_grpc_request_over_a_limit_names_the_limit(channel, case):
    method, data, wanted = RPC[case]()
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(method)(data, timeout=60)
    limit = wanted.startswith(("max_", "at most", "tasks"))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED if limit else grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.code() == code, caught.value.details()
    assert wanted in caught.value.details()
    assert len(caught.value.details()) < 1000


def test_compressed_message_is_refused_before_full_inflation(channel):
    zeros = message("inference.ModelInferRequest")(model_name="small", raw_input_contents=[bytes(80 << 20)])
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(INFER)(zeros.SerializeToString(), compression=grpc.Compression.Gzip, timeout=60)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_admin_port_limits_the_json_it_reads(server):
    for body in (b'{"split":' + b"[" * 70_000, b"[" * 60_000, b'{"a":' + many("{}", 20_000).encode() + b"}"):
        status, _, reply = server.request(
            "PUT", "/admin/models/small/policy", body, {"content-type": "application/json"}, admin=True
        )
        assert status == (413 if len(body) > 65536 else 400), reply[:300]
        assert len(reply) < 1000


def test_limit_of_a_model_can_be_changed_while_serving(server):
    try:
        assert server.post_json("/admin/models/small/policy", {"max_rows": 1}, "PUT")[0] == 200
        status, _, reply = server.request("POST", REST, json.dumps({"inputs": INPUTS}).encode())
        assert status == 413
        assert "max_rows: expected at most 1 rows per request, got 2" in json.loads(reply)["error"]
    finally:
        assert server.post_json("/admin/models/small/policy", {"max_rows": None}, "PUT")[0] == 200
