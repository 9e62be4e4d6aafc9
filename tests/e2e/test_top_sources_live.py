"""Popular, new and like items over the network: every dialect, both layouts, a delta that changes them, a rollback."""

import json

import grpc
import numpy as np
import pytest

from freshet_serving import Client
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package import TableDelta
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.support.ranked import MODEL, NUMBERS, numbers_of, ranked_delta, write_ranked

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta has a matrix of its own, so all scores move"),
]

ITEMS, K = range(500), 4
PAIRS = {item: (item * 37 % 101 / 8, item / 4096) for item in ITEMS}
TOP = {"x-top-items": str(K)}


def listed(pairs, source):
    column = ("popular", "new").index(source)
    return sorted(pairs, key=lambda item: (-pairs[item][column], item))[:K]


@pytest.fixture(params=[ALONE, ("--workers", "2")], ids=["alone", "workers"])
def server(request, tmp_path):
    write_ranked(tmp_path / "repository", ITEMS, numbers=PAIRS)
    options = (*request.param, "--delta-guard", "off")
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as live:
        yield live


def post(server, path, document):
    status, _, data = server.request("POST", path, json.dumps(document), TOP)
    assert status == 200, data
    return json.loads(data)


def call(server, method, request, reply):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        data = channel.unary_unary(method)(request.SerializeToString(), timeout=60, metadata=tuple(TOP.items()))
    return message(reply).FromString(data)


def tensorflow_columns(server, name, value):
    found = post(server, f"/v1/models/{MODEL}:predict", {"inputs": {name: [value]}})
    return found["outputs"]["item_ids"][0]


def tensorflow_rows(server, name, value):
    found = post(server, f"/v1/models/{MODEL}:predict", {"instances": [{name: value}]})
    return found["predictions"][0]["item_ids"]


def tensorflow_grpc(server, name, value):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = MODEL
    tensor = request.inputs[name]
    tensor.tensor_shape.dim.add(size=1)
    if isinstance(value, str):
        tensor.dtype = 7
        tensor.string_val.append(value.encode())
    else:
        tensor.dtype, tensor.tensor_content = 9, np.array([value]).tobytes()
    method = "/tensorflow.serving.PredictionService/Predict"
    return list(call(server, method, request, "tensorflow.serving.PredictResponse").outputs["item_ids"].int64_val)


def kserve_json(server, name, value):
    kind = "BYTES" if isinstance(value, str) else "INT64"
    tensor = {"name": name, "shape": [1], "datatype": kind, "data": [value]}
    return post(server, f"/v2/models/{MODEL}/infer", {"inputs": [tensor]})["outputs"][0]["data"]


def kserve_request(name, value):
    request = message("inference.ModelInferRequest")(model_name=MODEL)
    request.inputs.add(name=name, datatype="BYTES" if isinstance(value, str) else "INT64", shape=[1])
    text = value.encode() if isinstance(value, str) else b""
    content = len(text).to_bytes(4, "little") + text if text else np.array([value]).tobytes()
    request.raw_input_contents.append(content)
    return request


def kserve_grpc(server, name, value):
    method = "/inference.GRPCInferenceService/ModelInfer"
    reply = call(server, method, kserve_request(name, value), "inference.ModelInferResponse")
    return np.frombuffer(reply.raw_output_contents[0], "<i8").tolist()


def kserve_stream(server, name, value):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        sent = iter([kserve_request(name, value).SerializeToString()])
        (data,) = stream(sent, timeout=60, metadata=tuple(TOP.items()))
    found = message("inference.ModelStreamInferResponse").FromString(data)
    assert not found.error_message
    return np.frombuffer(found.infer_response.raw_output_contents[0], "<i8").tolist()


def deeprec(server, name, value):
    request = eas.Request()
    array = request.inputs[name]
    array.array_shape.dim.append(1)
    if isinstance(value, str):
        array.dtype = eas.TYPES["string"][0]
        array.string_val.append(value.encode())
    else:
        array.dtype = eas.TYPES["int64"][0]
        array.int64_val.append(value)
    status, _, data = server.request("POST", f"/v1/models/{MODEL}:processor", request.SerializeToString(), TOP)
    assert status == 200, data
    return list(eas.Response.FromString(data).outputs["item_ids"].int64_val)


def client(scheme, port):
    def ask(server, name, value):
        with Client(f"{scheme}://127.0.0.1:{getattr(server, port)}", timeout_s=60) as one:
            return one.recommend(MODEL, {}, K, **{name: value}).item_ids.tolist()

    return ask


DIALECTS = {
    "tensorflow columns": tensorflow_columns,
    "tensorflow rows": tensorflow_rows,
    "tensorflow gRPC": tensorflow_grpc,
    "KServe JSON": kserve_json,
    "KServe gRPC": kserve_grpc,
    "KServe stream": kserve_stream,
    "client HTTP": client("http", "http_port"),
    "client gRPC": client("grpc", "grpc_port"),
    "DeepRec": deeprec,
}


def check(server, pairs):
    like = post(server, f"/v1/models/{MODEL}:predict", {"inputs": {"history.item": [[7]]}})["outputs"]["item_ids"][0]
    for name, ask in DIALECTS.items():
        for source in ("popular", "new"):
            assert ask(server, "source", source) == listed(pairs, source), name
        assert ask(server, "like", 7) == like, name


def test_every_dialect_follows_a_delta_and_a_rollback(server, tmp_path):
    check(server, PAIRS)
    after = PAIRS | {3: (50.0, PAIRS[3][1]), 7777: (1.0, 2.0)}
    delta = ranked_delta(1, [7777])
    changed = {item: after[item] for item in (3, 7777)}
    delta.tables[NUMBERS] = TableDelta(*numbers_of(changed), np.empty(0, np.int64))
    write_delta(tmp_path / "upload", delta)
    status, reply = server.upload(MODEL, (tmp_path / "upload").read_bytes())
    assert status == 200, reply
    assert (listed(after, "popular")[0], listed(after, "new")[0]) == (3, 7777)
    check(server, after)
    status, reply = server.post_json(f"/admin/models/{MODEL}/rollback", {"generation": "1.0"})
    assert status == 200, reply
    check(server, PAIRS)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_wrong_sources_are_refused_by_name(server, scheme):
    address = f"{scheme}://127.0.0.1:{server.http_port if scheme == 'http' else server.grpc_port}"
    with Client(address, timeout_s=60) as one:
        with pytest.raises(BadInput, match="source: expected 'model', 'like', 'popular' or 'new', got 'hot'"):
            one.recommend(MODEL, {}, K, source="hot")
        with pytest.raises(BadInput, match=r"history\.item"):
            one.recommend(MODEL, {}, K)
        assert one.recommend(MODEL, {}, K, like=99_999).unfilled == K
