"""A predict request in every dialect, as other people's clients send it: each is to be answered alike.

    DIALECTS[name](server, model, inputs, headers) -> Reply

Inputs are arrays of int64, float32 or texts, and Ragged columns: lists in JSON, flat values beside their splits in
KServe and TensorFlow Serving's gRPC, a rectangle in DeepRec.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import grpc
import numpy as np

from freshet_serving import Client, Ragged
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.serving.codecs.messages import message
from tests.e2e.asking import INFER, PREDICT

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
DATATYPES = {"i": "INT64", "f": "FP32", "O": "BYTES"}
DTYPES = {"INT64": np.int64, "FP32": np.float32, "BYTES": object}
TYPES = {"i": "int64", "f": "float32", "O": "string"}


@dataclass(frozen=True)
class Reply:
    """outputs: by name; the only one under "" where a dialect does not name it. headers: their names in lower case."""

    outputs: dict[str, np.ndarray]
    headers: dict[str, str]

    def output(self, name):
        return self.outputs[name] if name in self.outputs else self.outputs[""]


def flat(column):
    """The values of a column as an array of int64, float32 or str."""
    values = column.values if isinstance(column, Ragged) else column
    if isinstance(values, Strings):
        return np.array([text.decode() for text in values.tolist()], object)
    values = np.asarray(values)
    return values.astype({"i": np.int64, "f": np.float32}.get(values.dtype.kind, object))


def lists(column):
    """A column as JSON has it: null for what is missing."""
    values = flat(column)
    if isinstance(column, Ragged):
        return [_json(values[a:b]) for a, b in pairwise(column.row_splits.tolist())]
    return _json(values)


def _json(values):
    return np.where(values != values, None, values.astype(object)).tolist()


def tensors(inputs):
    """Tensors by name; ragged columns beside their splits."""
    made = {name: flat(column) for name, column in inputs.items()}
    return made | {
        f"{name.partition('.')[0]}.row_splits": column.row_splits
        for name, column in inputs.items()
        if isinstance(column, Ragged)
    }


def post(server, path, body, headers):
    """(body, headers) of a reply with status 200."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    status, found, reply = server.request("POST", path, data, dict(headers))
    assert status == 200, reply
    return reply, {name.lower(): value for name, value in found.items()}


def tensorflow_columns(server, model, inputs, headers=()):
    body = {"inputs": {name: lists(column) for name, column in inputs.items()}}
    reply, found = post(server, f"/v1/models/{model}:predict", body, headers)
    outputs = json.loads(reply)["outputs"]
    outputs = outputs if isinstance(outputs, dict) else {"": outputs}
    return Reply({name: np.array(values) for name, values in outputs.items()}, found)


def tensorflow_rows(server, model, inputs, headers=()):
    columns = {name: lists(column) for name, column in inputs.items()}
    count = max(map(len, columns.values()))
    rows = [{name: column[n if len(column) > 1 else 0] for name, column in columns.items()} for n in range(count)]
    reply, found = post(server, f"/v1/models/{model}:predict", {"instances": rows}, headers)
    rows = [row if isinstance(row, dict) else {"": row} for row in json.loads(reply)["predictions"]]
    return Reply({name: np.array([row[name] for row in rows]) for name in rows[0]}, found)


def kserve_json(server, model, inputs, headers=()):
    described = [
        {"name": n, "shape": [*v.shape], "datatype": DATATYPES[v.dtype.kind], "data": _json(v.ravel())}
        for n, v in tensors(inputs).items()
    ]
    reply, found = post(server, f"/v2/models/{model}/infer", {"inputs": described}, headers)
    outputs = json.loads(reply)["outputs"]
    return Reply({o["name"]: np.array(o["data"], DTYPES[o["datatype"]]).reshape(o["shape"]) for o in outputs}, found)


def call(server, method, request, reply, headers=()):
    """(reply, trailing metadata)."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        metadata = tuple(dict(headers).items())
        data, done = channel.unary_unary(method).with_call(request.SerializeToString(), timeout=60, metadata=metadata)
    return message(reply).FromString(data), dict(done.trailing_metadata())


def tensorflow_request(model, inputs):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = model
    for name, values in tensors(inputs).items():
        tensor = request.inputs[name]
        tensor.dtype = eas.TYPES[TYPES[values.dtype.kind]][0]
        for size in values.shape:
            tensor.tensor_shape.dim.add(size=size)
        if values.dtype == object:
            tensor.string_val.extend(text.encode() for text in values.ravel().tolist())
        else:
            tensor.tensor_content = values.tobytes()
    return request


def tensorflow_grpc(server, model, inputs, headers=()):
    request = tensorflow_request(model, inputs)
    reply, found = call(server, PREDICT, request, "tensorflow.serving.PredictResponse", headers)
    return Reply({n: _values(t, [d.size for d in t.tensor_shape.dim]) for n, t in reply.outputs.items()}, found)


def _values(tensor, shape):
    """The array of a tensor of TensorFlow's, or DeepRec's, protocol."""
    ((name, field),) = [(name, field) for name, (number, _, field) in eas.TYPES.items() if number == tensor.dtype]
    return np.array(getattr(tensor, field), name if name != "string" else object).reshape(shape)


def kserve_request(model, inputs):
    request = message("inference.ModelInferRequest")(model_name=model)
    for name, values in tensors(inputs).items():
        request.inputs.add(name=name, datatype=DATATYPES[values.dtype.kind], shape=values.shape)
        coded = [text.encode() for text in values.ravel().tolist()] if values.dtype == object else []
        raw = b"".join(len(text).to_bytes(4, "little") + text for text in coded) if coded else values.tobytes()
        request.raw_input_contents.append(raw)
    return request


def _inferred(reply, headers):
    raw = zip(reply.outputs, reply.raw_output_contents)
    return Reply({o.name: np.frombuffer(data, DTYPES[o.datatype]).reshape(o.shape) for o, data in raw}, headers)


def kserve_grpc(server, model, inputs, headers=()):
    return _inferred(*call(server, INFER, kserve_request(model, inputs), "inference.ModelInferResponse", headers))


def kserve_stream(server, model, inputs, headers=()):
    sent = iter([kserve_request(model, inputs).SerializeToString()])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        (data,) = channel.stream_stream(STREAM)(sent, timeout=60, metadata=tuple(dict(headers).items()))
    reply = message("inference.ModelStreamInferResponse").FromString(data)
    assert not reply.error_message, reply.error_message
    parameters = reply.infer_response.parameters
    return _inferred(reply.infer_response, {f"x-{name}": value.string_param for name, value in parameters.items()})


def deeprec(server, model, inputs, headers=()):
    request = eas.Request()
    for name, column in inputs.items():
        values, array = flat(column), request.inputs[name]
        array.dtype, _, field = eas.TYPES[TYPES[values.dtype.kind]]
        shape = [len(column), len(values) // len(column)] if isinstance(column, Ragged) else values.shape
        array.array_shape.dim.extend(shape)
        flattened = values.ravel().tolist()
        getattr(array, field).extend([v.encode() for v in flattened] if values.dtype == object else flattened)
    reply, found = post(server, f"/v1/models/{model}:processor", request.SerializeToString(), headers)
    outputs = eas.Response.FromString(reply).outputs
    return Reply({name: _values(array, list(array.array_shape.dim)) for name, array in outputs.items()}, found)


def client(scheme):
    def ask(server, model, inputs, headers=()):
        with Client(server.address(scheme), timeout_s=60) as asking:
            found = asking.predict(model, inputs, headers=dict(headers))
        return Reply(found.outputs, {"x-model-generation": found.generation, "x-unfilled": found.unfilled})

    return ask


DIALECTS = {
    "tensorflow columns": tensorflow_columns,
    "tensorflow rows": tensorflow_rows,
    "tensorflow gRPC": tensorflow_grpc,
    "KServe JSON": kserve_json,
    "KServe gRPC": kserve_grpc,
    "KServe stream": kserve_stream,
    "client HTTP": client("http"),
    "client gRPC": client("grpc"),
    "DeepRec": deeprec,
}
