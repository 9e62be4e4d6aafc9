"""64 candidates a request, saturated: every dialect against binary KServe over HTTP, and JSON rows against orjson.

Every client is a closed loop in C (wrk, h2load) that sends one request over and over. Over gRPC the server is asked
afterwards how many requests it has answered well: h2load sees HTTP's status only.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from pathlib import Path

import numpy as np
import orjson

from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.serving.codecs import tfs_rest
from freshet_serving.serving.codecs.messages import message
from loadtest.bench.harness import CONNECTIONS, Bench, Result
from loadtest.bench.pairs import Pair
from loadtest.load import h2load, wrk
from loadtest.load.encoding import encode_kserve
from loadtest.load.launch import CommandFailed, RunningServer
from loadtest.load.payload import BENCH, Payload, bench_inputs
from loadtest.load.sides import Turn, medians, over

CANDIDATES = 64
BASE = "KServe, binary, HTTP"
JSON_GOAL = 0.5
INFER, PREDICT = "/inference.GRPCInferenceService/ModelInfer", "/tensorflow.serving.PredictionService/Predict"
JSON_TYPE = {"Content-Type": "application/json"}


def run(bench: Bench) -> Result:
    """Each dialect's requests a second as a ratio of the binary path's; and the cost of JSON rows by themselves."""
    result = Result("protocols", f"{CANDIDATES} candidates a request, saturated: each dialect / binary KServe")
    (inputs,) = bench_inputs(CANDIDATES, 1, bench.table_rows)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(bench.server(bench.main))
        sides = {name: _wrk(bench, server, name, payload) for name, payload in over_http(inputs).items()}
        try:
            wrk.available("h2load")
            sides |= {name: _h2load(bench, server, *call) for name, call in over_grpc(inputs).items()}
        except CommandFailed as error:
            result.refused["gRPC"] = str(error)
        turns = bench.turns(sides)
    for name in turns:
        if name != BASE:
            result.row(f"{name} / {BASE}", over(turns, name, BASE, "requests/s"))
        result.fact(name, f"{medians(turns, name, 'requests/s')[0]:.0f} requests/s")
    manifest = Manifest.from_json((bench.repository() / "bench" / "1" / "model.json").read_bytes())
    bench.pair(result, rows_pair(inputs, manifest), (">=", JSON_GOAL))
    result.notes.append("One request is sent over and over, so its rows are in the cache: for every dialect alike.")
    return result


def over_http(inputs: dict[str, np.ndarray]) -> dict[str, Payload]:
    """The payload of each HTTP dialect's request."""
    binary = encode_kserve(BENCH, inputs)
    path = "/v1/models/bench"
    tensors = [
        {"name": name, "datatype": datatype, "shape": inputs[name].shape, "data": inputs[name].ravel()}
        for name, datatype in (("ids", "INT64"), ("floats", "FP32"))
    ]
    return {
        BASE: Payload(binary.path, (binary.body,), binary.headers),
        "KServe, JSON, HTTP": Payload(binary.path, (_json({"inputs": tensors}),), JSON_TYPE),
        "TensorFlow Serving, JSON columns, HTTP": Payload(f"{path}:predict", (_json({"inputs": inputs}),), JSON_TYPE),
        "TensorFlow Serving, JSON rows, HTTP": Payload(f"{path}:predict", (rows_body(inputs),), JSON_TYPE),
        "DeepRec, HTTP": Payload(f"{path}:processor", (deeprec(inputs),), {}),
    }


def over_grpc(inputs: dict[str, np.ndarray]) -> dict[str, tuple[str, str, bytes]]:
    """Each dialect's name in metrics, method and message."""
    infer = message("inference.ModelInferRequest")(model_name="bench")
    content, typed = message("tensorflow.serving.PredictRequest")(), message("tensorflow.serving.PredictRequest")()
    for name, datatype, dtype, held in (("ids", "INT64", 9, "int64_val"), ("floats", "FP32", 1, "float_val")):
        array = inputs[name]
        infer.inputs.add(name=name, datatype=datatype, shape=array.shape)
        infer.raw_input_contents.append(array.tobytes())
        for request in (content, typed):
            request.model_spec.name = "bench"
            request.inputs[name].dtype = dtype
            for size in array.shape:
                request.inputs[name].tensor_shape.dim.add(size=size)
        content.inputs[name].tensor_content = array.tobytes()
        getattr(typed.inputs[name], held).extend(array.ravel())
    return {
        "KServe, raw, gRPC": ("kserve_grpc", INFER, infer.SerializeToString()),
        "TensorFlow Serving, tensor_content, gRPC": ("tfs_grpc", PREDICT, content.SerializeToString()),
        "TensorFlow Serving, *_val, gRPC": ("tfs_grpc", PREDICT, typed.SerializeToString()),
    }


def deeprec(inputs: dict[str, np.ndarray]) -> bytes:
    request = eas.Request()
    for name, dtype, held in (("ids", 9, "int64_val"), ("floats", 1, "float_val")):
        request.inputs[name].dtype = dtype
        request.inputs[name].array_shape.dim.extend(inputs[name].shape)
        getattr(request.inputs[name], held).extend(inputs[name].ravel())
    data: bytes = request.SerializeToString()
    return data


def rows_body(inputs: dict[str, np.ndarray]) -> bytes:
    return _json({"instances": [dict(zip(inputs, row)) for row in zip(*inputs.values())]})


def rows_pair(inputs: dict[str, np.ndarray], manifest: Manifest) -> Pair:
    """orjson's parsing of the request and printing of the reply, against all that the codec does with them."""
    body, scores = rows_body(inputs), {"score": np.linspace(0, 1, CANDIDATES, dtype=np.float32)[:, None]}
    _, options = tfs_rest.decode(body, {}, manifest)
    reply = orjson.loads(tfs_rest.encode(scores, options))

    def alone() -> None:
        orjson.loads(body)
        orjson.dumps(reply)

    def codec() -> None:
        tfs_rest.decode(body, {}, manifest)
        tfs_rest.encode(scores, options)

    return Pair("orjson parses and prints / JSON rows decoded and encoded", alone, codec, 1, "request")


def _json(document: object) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _wrk(bench: Bench, server: RunningServer, name: str, payload: Payload) -> Turn:
    folder = bench.work / "protocols" / re.sub(r"\W+", "-", name)

    def turn() -> dict[str, float]:
        path: Path = folder if folder.exists() else payload.save(folder)
        return {"requests/s": wrk.saturate(server.http_port, path, bench.seconds, CONNECTIONS).per_s}

    return turn


def _h2load(bench: Bench, server: RunningServer, protocol: str, method: str, sent: bytes) -> Turn:
    def turn() -> dict[str, float]:
        before = _answered(server, protocol)
        found = h2load.saturate(server.grpc_port, method, sent, bench.seconds, CONNECTIONS)
        good = _answered(server, protocol) - before
        if good < found.requests:
            raise CommandFailed(f"{method}: {found.requests} replies, {good:.0f} of them good")
        return {"requests/s": found.per_s}

    return turn


def _answered(server: RunningServer, protocol: str) -> float:
    """Requests of a protocol that the server has answered with 200."""
    with urllib.request.urlopen(f"{server.host}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    labels = f'code="200",protocol="{protocol}"', f'protocol="{protocol}",code="200"'
    heads = tuple(f"freshet_http_requests_total{{{each}}} " for each in labels)
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(heads))
