"""The parsers, each with a corpus of valid inputs. A case that passes is bound to the model, as a request would be:
what a codec lets through must not surprise the engine either."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np

from freshet_serving.processor.columns import PackedColumns
from freshet_serving.processor.extensions.deeprec import codec as eas
from freshet_serving.processor.extensions.top_items.filter_text import read_filter
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package.delta import Delta, TableDelta, _parse_verified, parse_delta, write_delta
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Feature, File, Input, Output, TableEntry
from freshet_serving.processor.package.tensors import header_checksum, parse_tensors, write_tensors
from freshet_serving.processor.package.transforms import Transform
from freshet_serving.processor.repository.log.chain_record import ChainRecord
from freshet_serving.processor.repository.version import SnapshotManifest
from freshet_serving.serving.codecs import examples, kserve, kserve_rpc, tfs_rest, tfs_rpc
from freshet_serving.serving.codecs.kserve_header import decode_bytes
from freshet_serving.serving.codecs.messages import message
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.http import paths as routes
from freshet_serving.serving.http.http_head import read_head
from freshet_serving.serving.http.request_body import ChunkedBody
from tests.fuzz.online_targets import online_targets
from tests.fuzz.stream_targets import stream_targets
from tests.fuzz.target import Target

LENGTH = b"inference-header-content-length"


def manifest(inputs):
    """A model that looks up every int64 and string input."""
    features, tables, at = [], [], 0
    for spec in inputs:
        columns = range(spec.columns) if spec.columns else [-1]
        for column in columns:
            name = spec.name if column < 0 else f"{spec.name}{column}"
            if spec.dtype == "float32":
                features.append(Feature(name, "float", spec.name, column, offset=at))
                at += 1
                continue
            kind = {"int64": "id", "string": "string"}[spec.dtype] + ("s" if spec.ragged else "")
            features.append(Feature(name, kind, spec.name, column, table=name, offset=at, width=2))
            tables.append(TableEntry(name, 2, 0))
            at += 2
    return Manifest("ctr", 1, "fuzz", 0.0, inputs, features, tables, [Output("score")], at, {}, {})


PACKED = manifest([Input("ids", "int64", 3), Input("floats", "float32", 2)])
MIXED = manifest(
    [Input("user", "int64"), Input("seen", "int64", ragged=True), Input("tags", "string", ragged=True),
     Input("city", "string"), Input("x", "float32", 2)]
)  # fmt: skip
MIXED = replace(
    MIXED,
    transforms=[
        Transform("hashed", "farm", ["tags"], [100]),
        Transform("number", "text", ["user"], texts=["%d"]),
        Transform("pair", "join", ["city", "number"], texts=["", "_", ""]),
        Transform("bucket", "sip", ["pair"], [100, 1, 2]),
        Transform("crossed", "cross", ["tags", "seen", "bucket"], [1000, 7]),
        Transform("step", "bucketize", ["x"], floats=[-1.0, 0.0, 1.0]),
        Transform("counted", "one_hot", ["step"], [4]),
    ],
)
PLANS = {id(m): SparsePlan(m) for m in (PACKED, MIXED)}
IDS, FLOATS = np.arange(6).reshape(2, 3), np.arange(4, dtype=np.float32).reshape(2, 2)


def bound(inputs, model):
    PLANS[id(model)].bind_inputs(inputs if isinstance(inputs, PackedColumns) else dict(inputs))


# HTTP, JSON.

MIXED_JSON = {
    "user": [1, 2], "seen": [[1, 2], []], "tags": [["a"], [{"b64": "/w=="}]], "city": ["x", "é"],
    "x": [[0.5, 1], [2, 3]],
}  # fmt: skip
ROWS = [{name: values[n] for name, values in MIXED_JSON.items()} for n in range(2)]


def tensor(name, datatype, shape, data=None, **parameters):
    described = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        described["data"] = data
    return {**described, "parameters": parameters} if parameters else described


KSERVE_MIXED = [
    tensor("user", "INT64", [2], [1, 2]), tensor("seen", "INT64", [2], [1, 2]),
    tensor("seen.row_splits", "INT64", [3], [0, 2, 2]), tensor("tags", "BYTES", [1], ["a"]),
    tensor("tags.row_splits", "INT64", [3], [0, 0, 1]), tensor("city", "BYTES", [2], ["x", "y"]),
    tensor("x", "FP32", [2, 2], [0.5, 1, 2, 3]),
]  # fmt: skip


def predict(data):
    bound(tfs_rest.decode(data, {}, MIXED)[0], MIXED)


def classify(data):
    bound(tfs_rest.decode_examples(data, {}, MIXED, "classify")[0], MIXED)


def infer_json(data):
    bound(kserve.decode(data, {}, MIXED)[0], MIXED)


FILTERED = {
    "price": Input("price", "float32"), "stock": Input("stock", "int64"), "category": Input("category", "string"),
    "tags": Input("tags", "string", ragged=True), "seller": Input("seller", "int64", declared="uint64"),
}  # fmt: skip
FILTERS = (
    {"price": [None, 20.5], "category": ["a", "b"], "tags": {"not": "t1"}, "stock": True},
    {"stock": {"in": [1, 2, 1e3]}, "seller": {"not": {"not": [0, 2**64 - 1]}}, "category": "é"},
)


def item_filter(data):
    read_filter(data, FILTERED)


# HTTP, binary: the first two bytes say how long the header is, so that it is fuzzed too.


def binary(tensors, *buffers, **more):
    header = json.dumps({"inputs": tensors, **more}).encode()
    return len(header).to_bytes(2, "little") + header + b"".join(buffers)


def infer_binary(model):
    def run(data):
        headers = {LENGTH: b"%d" % int.from_bytes(data[:2], "little")}
        bound(kserve.decode(data[2:], headers, model)[0], model)

    return run


BINARY_PACKED = (
    binary(
        [tensor("ids", "INT64", [2, 3], binary_data_size=48), tensor("floats", "FP32", [2, 2], binary_data_size=16)],
        IDS.tobytes(), FLOATS.tobytes(), parameters={"binary_data_output": True, "timeout": 1000},
    ),
    binary(
        [tensor("ids", "INT64", [1, 3], binary_data_size=24), tensor("floats", "BF16", [2, 2], binary_data_size=8)],
        IDS[:1].tobytes(), bytes(8), id="q", outputs=[{"name": "score", "parameters": {"binary_data": True}}],
    ),
)  # fmt: skip
BINARY_MIXED = (
    binary(
        [*KSERVE_MIXED[:3], tensor("tags", "BYTES", [2], binary_data_size=11),
         tensor("tags.row_splits", "INT64", [3], binary_data_size=24),
         tensor("city", "BYTES", [2], binary_data_size=10), KSERVE_MIXED[6]],
        b"\x01\0\0\0a\x02\0\0\0bc", np.array([0, 1, 2]).tobytes(), b"\x01\0\0\0a\x01\0\0\0b",
    ),
)  # fmt: skip

# Protobuf.


def infer_message(packed):
    made = message("inference.ModelInferRequest")(model_name="ctr", model_version="1")
    if packed:
        made.inputs.add(name="ids", datatype="INT64", shape=[2, 3])
        made.inputs.add(name="floats", datatype="FP32", shape=[2, 2])
        made.raw_input_contents.extend([IDS.tobytes(), FLOATS.tobytes()])
    else:
        fields = {"INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
        for t in KSERVE_MIXED:
            contents = made.inputs.add(name=t["name"], datatype=t["datatype"], shape=t["shape"]).contents
            data = [v.encode() if isinstance(v, str) else v for v in t["data"]]
            getattr(contents, fields[t["datatype"]]).extend(data)
    made.outputs.add(name="score").parameters["binary_data"].bool_param = True
    made.parameters["timeout"].int64_param = 1000
    return made.SerializeToString(deterministic=True)


def predict_message(content):
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name, made.model_spec.version.value = "ctr", 1
    for name, dtype, held, array in (("ids", 9, "int64_val", IDS), ("floats", 1, "float_val", FLOATS)):
        t = made.inputs[name]
        t.dtype = dtype
        for size in array.shape:
            t.tensor_shape.dim.add(size=size)
        if content:
            t.tensor_content = array.tobytes()
        else:
            getattr(t, held).extend(array.ravel())
    made.output_filter.append("score")
    return made.SerializeToString(deterministic=True)


def eas_message():
    made = eas.Request(signature_name="serving_default", output_filter=["score"])
    for name, dtype, held, array in (("ids", 9, "int64_val", IDS), ("floats", 1, "float_val", FLOATS)):
        made.inputs[name].dtype = dtype
        made.inputs[name].array_shape.dim.extend(array.shape)
        getattr(made.inputs[name], held).extend(array.ravel())
    return made.SerializeToString(deterministic=True)


def input_message():
    made = message("tensorflow.serving.Input")()
    for holder in (made.example_list_with_context.examples.add(), made.example_list_with_context.context):
        features = holder.features.feature
        features["user"].int64_list.value.append(1)
        features["seen"].int64_list.value.extend([1, 2])
        features["tags"].bytes_list.value.append(b"a")
        features["city"].bytes_list.value.append(b"x")
        features["x"].float_list.value.extend([0.5, 1])
    return made.SerializeToString(deterministic=True)


def kserve_message(model):
    templates = Templates()

    def run(data):
        bound(kserve_rpc.InferDecoder(data, templates).columns(model)[0], model)

    return run


def tfs_message():
    templates = Templates()

    def run(data):
        bound(tfs_rpc.PredictDecoder(data, templates).columns(PACKED), PACKED)

    return run


def eas_request(data):
    bound(eas.decode(data, PACKED)[0], PACKED)


def example_list(data):
    from freshet_serving.serving.rpc.handlers import parse

    given = parse("tensorflow.serving.Input", data)
    bound(examples.columns(*examples.of_message(given), MIXED), MIXED)


# Files.


def delta_file(tmp):
    """One delta's bytes. tmp: a folder to write it to."""
    tables = {"ids0": TableDelta(np.arange(3), np.ones((3, 2), np.float32), np.array([7]))}
    dense = {"mlp/kernel": np.ones((2, 2), np.float32)}
    path = tmp / "1.safetensors"
    write_delta(path, Delta("ctr", 1, 1, 0, tables, dense, published_at=1.0))
    return path.read_bytes()


def delta_past_its_checksum(data):
    """An attacker can write a checksum that fits."""
    tensors = parse_tensors(np.frombuffer(data, np.uint8), "delta")
    checksum = header_checksum(tensors.metadata, tensors.arrays)
    _parse_verified(replace(tensors, metadata={**tensors.metadata, "checksum": checksum}))


def tensors_file():
    file = io.BytesIO()
    write_tensors(file, {"a": np.arange(6).reshape(2, 3), "b": np.ones(3, np.float32)}, {"k": "v"})
    return file.getvalue()


def chain_record():
    digest, content = "ab" * 16, "cd" * 32
    file = "deltas/7.safetensors"
    return ChainRecord("small", 1, 7, "delta", content, 7, digest, 6, digest, 7, 0, file, 9, content, 0, 1.5).to_bytes()


def snapshot_list():
    files = {"tables/user.safetensors": File(9, "0" * 8), "dense.safetensors": File(4, "1" * 8)}
    return SnapshotManifest("snapshots/7-ab", 7, "ab" * 16, {"user": 5}, files, 1.5, [1.0, 2.0]).to_json()


def strings(data):
    decode_bytes(np.frombuffer(data[1:], np.uint8), data[0] if data else 0, "tags")


def path(data):
    routes.parse(data)


def http_head(data):
    read_head(data)


def chunked_body(data):
    unread, taking = bytearray(data), ChunkedBody()
    while not taking.take(unread, bytearray()) and taking.more:
        pass


HEADS = (
    b"POST /v1/models/ctr:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nX-Request-Id: a\r\n\r\n",
    b"GET /v2?a=b HTTP/1.1\r\nHost: y\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n",
)
CHUNKS = (b"5\r\nhello\r\n2;name=value\r\n, \r\n0\r\ntrailer: x\r\n\r\n", b"1\r\na\r\n" * 9 + b"0\r\n\r\n")
PATHS = tuple(
    p.encode()
    for p in (
        "/v1/models/ctr:predict", "/v1/models/a%2Fb/versions/12/metadata", "/V1/models/ctr/labels/x:classify", "/v2",
        "/v2/models/ctr/versions/3/infer", "/v2/repository/models/ctr/load", "/v2/systemsharedmemory/region/r/status",
    )
)  # fmt: skip


def targets(tmp):
    """All of them. tmp: a folder for files."""
    delta = delta_file(tmp)
    dump = lambda *documents: tuple(json.dumps(d).encode() for d in documents)  # noqa: E731
    return (
        Target("JSON: predict", predict, dump({"inputs": MIXED_JSON}, {"instances": ROWS, "signature_name": ""}), 4),
        Target("JSON: classify", classify, dump({"examples": ROWS, "context": {"user": 1}}), 2),
        Target("JSON: infer", infer_json, dump({"inputs": KSERVE_MIXED, "id": "q", "outputs": [{"name": "score"}]}), 3),
        Target("JSON: filter of items", item_filter, dump(*FILTERS), 2),
        Target("binary: infer, plain", infer_binary(PACKED), BINARY_PACKED, 4),
        Target("binary: infer, strings", infer_binary(MIXED), BINARY_MIXED, 2),
        Target("binary: length-prefixed strings", strings, (b"\x02\x01\0\0\0a\x02\0\0\0bc",), 2),
        Target("protobuf: ModelInfer, raw", kserve_message(PACKED), (infer_message(True),), 4),
        Target("protobuf: ModelInfer, typed", kserve_message(MIXED), (infer_message(False),), 2),
        Target("protobuf: Predict", tfs_message(), (predict_message(True), predict_message(False)), 4),
        Target("protobuf: Input of examples", example_list, (input_message(),), 2),
        Target("protobuf: DeepRec", eas_request, (eas_message(),), 3),
        Target("file: delta", parse_delta, (delta,), 3),
        Target("file: delta, past its checksum", delta_past_its_checksum, (delta,), 2),
        Target("file: tensors", lambda d: parse_tensors(np.frombuffer(d, np.uint8), "tensors"), (tensors_file(),), 2),
        Target("file: manifest", Manifest.from_json, (PACKED.to_json(), MIXED.to_json()), 1),
        Target("file: record of a chain", lambda d: ChainRecord.from_bytes(d, 7), (chain_record(),), 1),
        Target("file: list of a snapshot", SnapshotManifest.from_json, (snapshot_list(),), 1),
        Target("HTTP: path", path, PATHS, 2),
        Target("HTTP: head", http_head, HEADS, 2),
        Target("HTTP: chunked body", chunked_body, CHUNKS, 2),
        *stream_targets(tmp),
        *online_targets(),
    )
