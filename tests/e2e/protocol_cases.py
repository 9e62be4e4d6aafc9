"""Requests and what they have to be answered, as data: over HTTP, and over gRPC.

Models of the server: `small` (user int64 [n], tags ragged strings, floats float32 [n, 4]) and `flat` (x float32
[n, 12]), one version each, number 1, label `stable` of small; model control and shared memory turned off.

An HTTP case: (method, path, body, status, expected, headers). A body that is no bytes is sent as JSON. A gRPC case:
(method, message as JSON, code, expected).
expected: a document is the whole reply; a string is the whole error message, with … at its end the beginning of one;
Scores(key, n) is n scores under that key, all finite; Holds(key=value, ...) are some of the reply's keys; None is
anything.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    key: str
    count: int


class Holds(dict):
    """Some keys of a reply and their values."""


ROW = {"user": 3, "tags": ["a", "b"], "floats": [0.5, 1, -2, 0]}
SECOND = {"user": 55, "tags": [], "floats": [0, 0, 0, 0]}
COLUMNS = {"user": [3, 55], "tags": [["a", "b"], []], "floats": [[0.5, 1, -2, 0], [0, 0, 0, 0]]}
SMALL, FLAT = "/v1/models/small", "/v1/models/flat"
PREDICT, ONE = f"{SMALL}:predict", f"{FLAT}:predict"
X = [0.5] * 12
MALFORMED = "Malformed request: "


def without(document, key):
    return {k: v for k, v in document.items() if k != key}


def rows(*changes, **more):
    """A predict body of ROW and SECOND, some of their keys changed."""
    return {"instances": [{**ROW, **changes[0]} if changes else ROW, SECOND], **more}


TFS_PREDICT = [
    ("POST", PREDICT, {"instances": [ROW]}, 200, Scores("predictions", 1)),
    ("POST", PREDICT, {"instances": [ROW, SECOND]}, 200, Scores("predictions", 2)),
    ("POST", PREDICT, {"inputs": COLUMNS}, 200, Scores("outputs", 2)),
    ("POST", PREDICT, {"inputs": {**COLUMNS, "user": [3]}}, 200, Scores("outputs", 2)),
    ("POST", PREDICT, {"inputs": {**COLUMNS, "more": 1}}, 200, Scores("outputs", 2)),
    ("POST", PREDICT, {"inputs": {**COLUMNS, "user": [[3], [55]]}}, 200, Scores("outputs", 2)),
    ("POST", PREDICT, rows(signature_name="serving_default"), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows(signature_name=""), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"tags": [{"b64": base64.b64encode(b"a").decode()}]}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"tags": [{"b64": ""}]}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"tags": ["é", "日本"]}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"user": -(2**63)}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"user": 2**63 - 1}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, json.dumps(rows({"floats": [float("nan"), 0, 0, 0]})).encode(), 200, Scores("predictions", 2)),
    ("POST", PREDICT, b'{"instances":[{"user":1,"tags":[],"floats":[0,3.3e38,0,0]}]}', 200, Scores("predictions", 1)),
    ("POST", PREDICT, rows({"floats": [0, 0, 0, 3.3e38]}), 400, "input 'floats': expected a number that is finite after scaling, got 3.3e+38 in row 0, column 3"),
    ("POST", PREDICT, json.dumps(rows({"floats": [0, 0, -math.inf, 0]})).encode(), 400, "input 'floats': expected finite numbers (or NaN), got -inf in row 0, column 2"),
    ("POST", PREDICT, b'{"instances":[{"user":1,"tags":[],"floats":[1e3,-0.0,1E-3,2]}]}', 200, Scores("predictions", 1)),
    ("POST", PREDICT, b' \n {"instances" : [ {"user":1,"tags":[],"floats":[0,0,0,0]} ] } ', 200, Scores("predictions", 1)),
    ("POST", ONE, {"instances": [X, X]}, 200, Scores("predictions", 2)),
    ("POST", ONE, {"instances": [{"x": X}]}, 200, Scores("predictions", 1)),
    ("POST", ONE, {"inputs": [X, X, X]}, 200, Scores("outputs", 3)),
    ("POST", ONE, {"inputs": {"x": [X]}}, 200, Scores("outputs", 1)),
    ("POST", f"{SMALL}/versions/1:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", f"{SMALL}/labels/stable:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", f"{SMALL}/labels/1:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", "/V1/MODELS/small:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", "/v1/models/s%6Dall:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", PREDICT, gzip.compress(json.dumps(rows()).encode()), 200, Scores("predictions", 2), {"content-encoding": "gzip"}),
    ("POST", PREDICT, zlib.compress(json.dumps(rows()).encode()), 200, Scores("predictions", 2), {"content-encoding": "deflate"}),
    ("POST", PREDICT, json.dumps(rows()).encode(), 200, Scores("predictions", 2), {"content-encoding": "identity"}),
    ("POST", PREDICT, rows(), 200, Scores("predictions", 2), {"x-request-timeout-ms": "60000"}),
    ("POST", PREDICT, {}, 400, "Missing 'inputs' or 'instances' key"),
    ("POST", PREDICT, {"instances": [ROW], "inputs": COLUMNS}, 400, "Not formatted correctly expecting only one of…"),
    ("POST", PREDICT, {"instances": []}, 200, {"predictions": []}),
    ("POST", PREDICT, {"inputs": {"user": [3], "tags": [], "floats": []}}, 200, {"outputs": []}),
    ("POST", PREDICT, {"instances": {}}, 400, "Expecting 'instances' to be a list/array, got an object"),
    ("POST", PREDICT, {"instances": [1, 2]}, 400, "instances is a plain list, but expecting list of objects…"),
    ("POST", PREDICT, {"instances": [ROW, 1]}, 400, "Expecting object but got list at item 1 of input list"),
    ("POST", PREDICT, {"instances": [ROW, without(ROW, "user")]}, 400, "Failed to process element: 1 of 'instances' list…"),
    ("POST", PREDICT, {"instances": [{**ROW, "more": 1}]}, 400, "Failed to process element: 0 of 'instances' list…"),
    ("POST", PREDICT, rows({"user": 1.0}), 400, "Failed to process 'instances' list. Error: user: JSON Value: 1.0…"),
    ("POST", PREDICT, rows({"user": True}), 400, "Failed to process 'instances' list. Error: user: JSON Value: true…"),
    ("POST", PREDICT, rows({"user": "3"}), 400, "Failed to process 'instances' list. Error: user: JSON Value: \"3\"…"),
    ("POST", PREDICT, rows({"user": None}), 400, "Failed to process 'instances' list. Error: user: JSON Value: null…"),
    ("POST", PREDICT, rows({"floats": [None, 1, 2, 0], "tags": None}), 200, Scores("predictions", 2)),
    ("POST", PREDICT, rows({"user": 2**63}), 400, "Failed to process 'instances' list. Error: user: …"),
    ("POST", PREDICT, rows({"user": [3, 4]}), 400, "Failed to process 'instances' list. Error: user: …"),
    ("POST", PREDICT, rows({"floats": [1, 2, 3]}), 400, "Failed to process 'instances' list. Error: floats: Encountered list…"),
    ("POST", PREDICT, rows({"floats": [1, 2, 3, "4"]}), 400, "Failed to process 'instances' list. Error: floats: JSON Value…"),
    ("POST", PREDICT, rows({"floats": [1, 2, 3, 1e39]}), 400, "Failed to process 'instances' list. Error: floats: Cannot…"),
    ("POST", PREDICT, rows({"floats": 1}), 400, "Failed to process 'instances' list. Error: floats: …"),
    ("POST", PREDICT, rows({"tags": "a"}), 400, "Failed to process 'instances' list. Error: tags: …"),
    ("POST", PREDICT, rows({"tags": [1]}), 400, "Failed to process 'instances' list. Error: tags: JSON Value: 1…"),
    ("POST", PREDICT, rows({"tags": [{"b64": "?"}]}), 400, "Failed to process 'instances' list. Error: tags: Unable to base64…"),
    ("POST", PREDICT, rows({"tags": [{"b64": "YQ==", "x": 1}]}), 400, "Failed to process 'instances' list. Error: tags: …"),
    ("POST", PREDICT, rows({"tags": [{"b65": "YQ=="}]}), 400, "Failed to process 'instances' list. Error: tags: …"),
    ("POST", PREDICT, {"inputs": without(COLUMNS, "user")}, 400, "Missing named input: user in 'inputs' object."),
    ("POST", PREDICT, {"inputs": [1]}, 400, "inputs is a plain value/list, but expecting an object…"),
    ("POST", PREDICT, {"inputs": {**COLUMNS, "user": [1, 2, 3]}}, 400, "input 'tags': expected 3 rows (or 1), got 2"),
    ("POST", PREDICT, {"inputs": {**COLUMNS, "user": []}}, 400, None),
    ("POST", PREDICT, rows(signature_name="other"), 400, "Serving signature name: 'other' not found in signature def…"),
    ("POST", PREDICT, rows(signature_name=3), 400, "Not formatted correctly. 'signature_name' key must be a string value."),
    ("POST", PREDICT, b"", 400, "JSON Parse error: The document is empty"),
    ("POST", PREDICT, b"{", 400, "JSON Parse error: unexpected end of data at offset: 1, got the end"),
    ("POST", PREDICT, b"[1]", 400, "JSON Value: expected an object, got a list"),
    ("POST", PREDICT, b"3", 400, "JSON Value: expected an object, got a number"),
    ("POST", PREDICT, b"\xff\xfe", 400, "JSON Parse error: …"),
    ("POST", PREDICT, b"[" * 100_000, 400, "JSON Parse error: …"),
    ("POST", PREDICT, b"not gzip", 400, "body: not a valid gzip stream", {"content-encoding": "gzip"}),
    ("POST", PREDICT, gzip.compress(b"{}")[:-3], 400, "body: expected one complete gzip stream", {"content-encoding": "gzip"}),
    ("POST", PREDICT, b"{}", 415, "content-encoding: expected gzip or deflate, got 'br'", {"content-encoding": "br"}),
    ("POST", PREDICT, rows(), 400, "x-request-timeout-ms: expected milliseconds above 0…", {"x-request-timeout-ms": "soon"}),
    ("POST", PREDICT, rows(), 400, "x-request-timeout-ms: expected milliseconds above 0…", {"x-request-timeout-ms": "0"}),
    ("POST", "/v1/models/other:predict", rows(), 404, "Servable not found for request: Latest(other); the repository holds flat, small"),
    ("POST", f"{SMALL}/versions/9:predict", rows(), 404, "Servable not found for request: Specific(small, 9); small has version 1"),
    ("POST", f"{SMALL}/versions/0:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", f"{SMALL}/labels/0:predict", rows(), 200, Scores("predictions", 2)),
    ("POST", f"{SMALL}/labels/9:predict", rows(), 404, "Servable not found for request: Specific(small, 9); small has version 1"),
    ("POST", f"{SMALL}/labels/canary:predict", rows(), 400, "Unrecognized servable version label: canary; small has label stable"),
]  # fmt: skip

EXAMPLE = {"user": 3, "tags": ["a"], "floats": [1.5, 2, 0, 0]}
TFS_EXAMPLES = [
    ("POST", f"{SMALL}:regress", {"examples": [EXAMPLE]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:regress", {"examples": [EXAMPLE, {**EXAMPLE, "tags": []}]}, 200, Scores("results", 2)),
    ("POST", f"{SMALL}:regress", {"examples": [without(EXAMPLE, "tags")]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:regress", {"context": {"user": 3}, "examples": [without(EXAMPLE, "user")] * 3}, 200, Scores("results", 3)),
    ("POST", f"{SMALL}:regress", {"context": {"user": 9}, "examples": [EXAMPLE]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "tags": {"b64": "YQ=="}}]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:regress", {"examples": [{**without(EXAMPLE, "floats"), "f0": 1, "f1": 2.5, "f2": [0], "f3": 0}]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}/versions/1:regress", {"examples": [EXAMPLE], "signature_name": "serving_default"}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:classify", {"examples": [EXAMPLE, EXAMPLE]}, 200, Scores("results", 2)),
    ("POST", f"{FLAT}:classify", {"examples": [{"x": X}]}, 200, Scores("results", 1)),
    ("POST", f"{SMALL}:regress", {}, 400, "When method is regress, key 'examples' is expected and was not found"),
    ("POST", f"{SMALL}:classify", rows(), 400, "When method is classify, key 'examples' is expected and was not found"),
    ("POST", f"{SMALL}:regress", {"examples": []}, 200, {"results": []}),
    ("POST", f"{SMALL}:regress", {"examples": 3}, 400, "examples: expected a list, got a number"),
    ("POST", f"{SMALL}:regress", {"examples": [3]}, 400, "examples[0]: expected an object of features, got a number"),
    ("POST", f"{SMALL}:regress", {"examples": [EXAMPLE], "context": 3}, 400, "context: expected an object of features, got a number"),
    ("POST", f"{SMALL}:regress", {"examples": [without(EXAMPLE, "user")]}, 400, "Feature: user (data type: DT_INT64) is required but could not be found."),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "user": [1, 2]}]}, 400, "Feature: user (data type: DT_INT64) expected 1 values, got 2"),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "user": 1.5}]}, 400, "Key: 'user'. Data types don't match. Expected DT_INT64, got DT_FLOAT"),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "user": "a"}]}, 400, "Key: 'user'. Data types don't match. Expected DT_INT64, got DT_STRING"),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "tags": [1]}]}, 400, "Key: 'tags'. Data types don't match. Expected DT_STRING, got DT_INT64"),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "user": [None]}]}, 400, "Key: 'user'. Data types don't match. Expected DT_INT64, got DT_FLOAT"),
    ("POST", f"{SMALL}:regress", {"examples": [{**EXAMPLE, "tags": ["a", 1]}]}, 400, "examples[0].tags: expected numbers or strings…"),
    ("POST", "/v1/models/other:regress", {"examples": [EXAMPLE]}, 404, "Servable not found for request: Latest(other); the repository holds flat, small"),
]  # fmt: skip

STATUS = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
ROUTES = [
    ("GET", SMALL, None, 200, {"model_version_status": [STATUS], "name": "small", "ready": True}),
    ("GET", f"{SMALL}/versions/1", None, 200, {"model_version_status": [STATUS], "name": "small", "ready": True}),
    ("GET", f"{SMALL}/labels/stable", None, 200, {"model_version_status": [STATUS], "name": "small", "ready": True}),
    ("GET", f"{SMALL}/metadata", None, 200, Holds(model_spec={"name": "small", "signature_name": "", "version": "1"})),
    ("GET", f"{SMALL}/versions/1/metadata", None, 200, Holds(model_spec={"name": "small", "signature_name": "", "version": "1"})),
    ("GET", f"{SMALL}/labels/stable/metadata", None, 200, None),
    ("GET", "/v1/models/other", None, 404, "Could not find any versions of model other; the repository holds flat, small"),
    ("GET", f"{SMALL}/versions/9", None, 404, "Could not find version 9 of model small"),
    ("GET", f"{SMALL}/labels/canary", None, 400, "Unrecognized servable version label: canary; small has label stable"),
    ("GET", "/v1/models/other/metadata", None, 404, "Servable not found for request: Latest(other); the repository holds flat, small"),
    ("GET", PREDICT, None, 400, MALFORMED + "GET /v1/models/small:predict: method: expected POST, got GET"),
    ("GET", f"{SMALL}/versions/1:classify", None, 400, MALFORMED + "GET…"),
    ("GET", "/api/predict/small", None, 405, "method: expected POST, got GET"),
    ("PUT", PREDICT, rows(), 400, MALFORMED + "PUT…"),
    ("POST", SMALL, {}, 400, MALFORMED + "POST…"),
    ("POST", f"{SMALL}:Predict", rows(), 400, MALFORMED + "POST /v1/models/small:Predict"),
    ("POST", f"{SMALL}:", rows(), 400, MALFORMED + "POST /v1/models/small:"),
    ("POST", f"{SMALL}/versions/x:predict", rows(), 400, MALFORMED + "POST /v1/models/small/versions/x:predict"),
    ("POST", f"{SMALL}/versions/1/labels/stable:predict", rows(), 400, MALFORMED + "POST…"),
    ("POST", f"{SMALL}/versions/{'9' * 30}:predict", rows(), 400, "Failed to convert version: " + "9" * 30 + " to numeric."),
    ("GET", "/v1", None, 400, MALFORMED + "GET /v1"),
    ("GET", "/v1/models", None, 400, MALFORMED + "GET /v1/models"),
    ("GET", "/v1/models/%ff", None, 400, "path: expected UTF-8"),
    ("GET", "/", None, 200, Holds(name="freshet", ready=True, status="alive")),
    ("POST", "/", {}, 405, "method: expected GET or HEAD, got POST"),
    ("GET", "/doc", None, 404, "path: is not a route of this server"),
    ("GET", "/v3", None, 404, "path: is not a route of this server"),
    ("GET", "/" + "x" * 3000, None, 400, "path: expected at most 2048 bytes, got 3001"),
    ("GET", "/healthz", None, 200, {"live": True, "ready": True}),
    ("GET", "/v2/health/live", None, 200, {"live": True}),
    ("GET", "/v2/health/ready", None, 200, {"ready": True}),
    ("HEAD", "/v2/health/ready", None, 200, None),
    ("POST", "/v2/health/ready", {}, 405, "method: expected GET or HEAD, got POST"),
    ("GET", "/v2", None, 200, Holds(name="freshet", extensions=["binary_tensor_data", "model_configuration", "parameters", "statistics"])),
    ("GET", "/v2/models/small", None, 200, Holds(name="small", versions=["1"], platform="freshet_package")),
    ("GET", "/v2/models/small/versions/1", None, 200, Holds(outputs=[{"name": "score", "datatype": "FP32", "shape": [-1, 1]}])),
    ("GET", "/v2/models/flat", None, 200, Holds(inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 12]}])),
    ("GET", "/v2/models/small/ready", None, 200, {"name": "small", "ready": True}),
    ("GET", "/v2/models/small/versions/1/ready", None, 200, {"name": "small", "ready": True}),
    ("GET", "/v2/models/small/versions/9/ready", None, 404, "version 9 of model 'small' is not loaded"),
    ("GET", "/v2/models/other", None, 404, "model 'other' is not in the repository, which holds flat, small"),
    ("GET", "/v2/models/other/ready", None, 404, "model 'other' is not in the repository, which holds flat, small"),
    ("GET", "/v2/models/flat/config", None, 200, Holds(max_batch_size=4096, input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [12]}])),
    ("GET", "/v2/models/small/config", None, 200, Holds(max_batch_size=0, backend="freshet")),
    ("GET", "/v2/models/other/config", None, 404, "model 'other' is not in the repository, which holds flat, small"),
    ("GET", "/v2/models/small/stats", None, 200, Holds()),
    ("GET", "/v2/models/stats", None, 200, Holds()),
    ("GET", "/v2/models/other/stats", None, 404, "model 'other' is not in the repository, which holds flat, small"),
    ("GET", "/v2/models/small/versions/9/stats", None, 404, "version 9 of model 'small' is not loaded"),
    ("POST", "/v2/repository/index", None, 200, [
        {"name": "flat", "version": "1", "state": "READY", "reason": ""}, {"name": "small", "version": "1", "state": "READY", "reason": ""},
    ]),
    ("POST", "/v2/repository/index", {"ready": True}, 200, None),
    ("POST", "/v2/repository/index", {"ready": 1}, 400, "ready: expected a boolean, got a number"),
    ("GET", "/v2/repository/index", None, 405, "method: expected POST, got GET"),
    ("POST", "/v2/repository/models/small/load", {}, 403, "model control: disabled…"),
    ("POST", "/v2/repository/models/small/unload", {}, 403, "model control: disabled…"),
    ("GET", "/v2/systemsharedmemory/status", None, 404, "shared memory is disabled…"),
    ("POST", "/v2/systemsharedmemory/region/x/register", {"key": "/x", "byte_size": 8}, 404, "shared memory is disabled…"),
    ("GET", "/v2/cudasharedmemory/status", None, 404, "cudasharedmemory: CUDA shared memory is not supported…"),
    ("GET", "/v2/trace/setting", None, 404, "trace: Triton's trace settings are not supported…"),
    ("GET", "/v2/logging", None, 404, "logging: log settings cannot be changed over this port…"),
    ("POST", "/v2/models/small/generate", {}, 404, "path: is not a route of this server"),
]  # fmt: skip


def tensor(name, datatype, shape, data=None, **parameters):
    described = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        described["data"] = data
    if parameters:
        described["parameters"] = parameters
    return described


USER, FLOATS = tensor("user", "INT64", [2], [3, 55]), tensor("floats", "FP32", [2, 4], [0.5, 1, -2, 0, 0, 0, 0, 0])
TAGS, SPLITS = tensor("tags", "BYTES", [2], ["a", "b"]), tensor("tags.row_splits", "INT64", [3], [0, 2, 2])
INPUTS = [USER, TAGS, SPLITS, FLOATS]
INFER = "/v2/models/small/infer"


def infer(*replaced, **more):
    """An infer body: INPUTS, those that are given anew by name replaced."""
    new = {t["name"]: t for t in replaced}
    return {"inputs": [new.get(t["name"], t) for t in INPUTS], **more}


def binary(inputs, *buffers, **more):
    """(body, headers) of a binary request."""
    header = json.dumps({"inputs": inputs, **more}).encode()
    return header + b"".join(buffers), {"inference-header-content-length": str(len(header))}


def flat(nbytes=96, shape=(2, 12), datatype="FP32"):
    return tensor("x", datatype, list(shape), binary_data_size=nbytes)


XS = np.full((2, 12), 0.5, "<f4")
GOOD = binary([flat()], XS.tobytes())
KSERVE = [
    ("POST", INFER, infer(), 200, Holds(model_name="small", model_version="1")),
    ("POST", INFER, infer(id="q7"), 200, Holds(id="q7")),
    ("POST", "/v2/models/small/versions/1/infer", infer(), 200, Holds(model_version="1")),
    ("POST", INFER, infer(tensor("floats", "FP32", [2, 4], [[0.5, 1, -2, 0], [0, 0, 0, 0]])), 200, Holds()),
    ("POST", INFER, infer(tensor("user", "INT64", [1], [3])), 200, Holds()),
    ("POST", INFER, infer(tensor("user", "INT64", [2, 1], [[3], [55]])), 200, Holds()),
    ("POST", INFER, infer(outputs=[{"name": "score"}]), 200, Holds()),
    ("POST", INFER, infer(tensor("user", "INT64", [0], []), tensor("tags", "BYTES", [0], []),
     tensor("tags.row_splits", "INT64", [1], [0]), tensor("floats", "FP32", [0, 4], [])), 200, Holds()),
    ("POST", INFER, infer(outputs=[]), 200, Holds()),
    ("POST", INFER, infer(parameters={"timeout": 60_000_000, "priority": 1, "mine": "x"}), 200, Holds()),
    ("POST", INFER, infer(parameters={"timeout": 0}), 200, Holds()),
    ("POST", INFER, b'{"inputs":[' + json.dumps(USER).encode() + b"]}", 400, "inputs: tags is missing"),
    ("POST", INFER, infer(outputs=[{"name": "other"}]), 400, "outputs[0]: expected one of score, each once, got 'other'"),
    ("POST", INFER, infer(outputs=[{"name": "score", "parameters": {"classification": 1}}]), 400, "outputs[score].parameters.classification: not served"),
    ("POST", INFER, infer(parameters=3), 400, "parameters: expected an object, got a number"),
    ("POST", INFER, infer(parameters={"timeout": -1}), 400, "parameters.timeout: expected microseconds up to 3600000000, got -1"),
    ("POST", INFER, infer(parameters={"timeout": "1"}), 400, "parameters.timeout: expected microseconds…"),
    ("POST", INFER, infer(parameters={"priority": "high"}), 400, "parameters.priority: expected a whole number…"),
    ("POST", INFER, infer(id=3), 400, "id: expected a string of at most 256 characters, got a number"),
    ("POST", INFER, infer(tensor("user", "FP32", [2], [3, 55])), 400, "inputs[user].datatype: expected INT64, got 'FP32'"),
    ("POST", INFER, infer(tensor("user", "INT64", [2], [3, 5.5])), 400, "user: JSON Value: 5.5…"),
    ("POST", INFER, infer(tensor("user", "INT64", [3], [3, 55])), 400, "inputs[user].data: expected 3 values, got 2"),
    ("POST", INFER, infer(tensor("user", "INT64", [-1], [3, 55])), 400, "inputs[user].shape: expected [n] as a list of whole numbers"),
    ("POST", INFER, infer(tensor("user", "INT64", 2, [3, 55])), 400, "inputs[user].shape: expected [n] as a list of whole numbers"),
    ("POST", INFER, infer(tensor("user", "INT64", [1, 2], [3, 55])), 400, "inputs[user].shape: expected [n], got [1, 2]"),
    ("POST", INFER, infer(tensor("floats", "FP32", [4, 2], [0] * 8)), 400, "inputs[floats].shape: expected [n, 4], got [4, 2]"),
    ("POST", INFER, infer(tensor("floats", "FP16", [2, 4], [0] * 8)), 400, "inputs[floats].data: FP16 must be sent as a binary tensor"),
    ("POST", INFER, infer(tensor("tags.row_splits", "INT64", [3], [0, 3, 2])), 400, "inputs[tags.row_splits]: expected values ascending from 0 to 2"),
    ("POST", INFER, infer(tensor("user", "INT64", [2])), 400, "inputs[user].data: expected a list, got null"),
    ("POST", INFER, {"inputs": [*INPUTS, USER]}, 400, None),
    ("POST", INFER, {"inputs": [*INPUTS[:3], USER]}, 400, "inputs[3]: expected one of user, tags, floats, each once, got 'user'"),
    ("POST", INFER, {"inputs": [3]}, 400, "inputs[0]: expected an object with a name"),
    ("POST", INFER, {"inputs": 3}, 400, "inputs: expected a list of at most 4 tensors, got a number"),
    ("POST", INFER, {}, 400, "inputs: expected a list of at most 4 tensors, got null"),
    ("POST", INFER, infer(tensor("user", "INT64", [3], [1, 2, 3])), 400, None),
    ("POST", INFER, infer(tensor("floats", "FP32", [2, 4], shared_memory_region="r", shared_memory_byte_size=32)), 400, "inputs[floats].parameters.shared_memory_region: shared memory is not served"),
    ("POST", "/v2/models/other/infer", infer(), 404, "model 'other' is not in the repository, which holds flat, small"),
    ("POST", "/v2/models/small/versions/9/infer", infer(), 404, "version 9 of model 'small' is not loaded"),
    ("GET", INFER, None, 405, "method: expected POST, got GET"),
    ("POST", "/v2/models/flat/infer", GOOD[0], 200, Holds(model_name="flat"), GOOD[1]),
    ("POST", "/v2/models/flat/infer", gzip.compress(GOOD[0]), 200, Holds(), {**GOOD[1], "content-encoding": "gzip"}),
    ("POST", "/v2/models/flat/infer", GOOD[0], 400, "JSON Parse error: …", {}),
    ("POST", "/v2/models/flat/infer", GOOD[0] + b"x", 400, "inputs: expected 96 bytes of binary tensors, got 97", GOOD[1]),
    ("POST", "/v2/models/flat/infer", GOOD[0][:-1], 400, "inputs: expected 96 bytes of binary tensors, got 95", GOOD[1]),
    ("POST", "/v2/models/flat/infer", *binary([flat(95)], XS.tobytes())[:1], 400, "inputs[x].parameters.binary_data_size: expected 96, got 95", binary([flat(95)])[1]),
    ("POST", "/v2/models/flat/infer", GOOD[0], 400, "inference-header-content-length: expected a whole number from 0 to …", {"inference-header-content-length": "99999"}),
    ("POST", "/v2/models/flat/infer", GOOD[0], 400, "inference-header-content-length: expected a whole number from 0 to …", {"inference-header-content-length": "-1"}),
    ("POST", "/v2/models/flat/infer", binary([flat(48, datatype="FP16")], XS.astype("<f2").tobytes())[0], 200, Holds(), binary([flat(48, datatype="FP16")])[1]),
    ("POST", "/v2/models/flat/infer", binary([flat(48, datatype="BF16")], struct.pack("<24H", *[0x3F00] * 24))[0], 200, Holds(), binary([flat(48, datatype="BF16")])[1]),
    ("POST", "/v2/models/flat/infer", XS.tobytes()[:95], 400, "body: expected a multiple of 48 bytes, got 95", {"inference-header-content-length": "0"}),
    ("POST", INFER, XS.tobytes(), 400, "Inference-Header-Content-Length: 0 requires a model with one…", {"inference-header-content-length": "0"}),
]  # fmt: skip

HTTP = [*TFS_PREDICT, *TFS_EXAMPLES, *ROUTES, *KSERVE]

# gRPC. Service and method; the message as JSON; the code; what the reply holds, or the error's message.
PREDICTION, MODELS = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
INFERENCE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"


def shape(*sizes):
    return {"dim": [{"size": s} for s in sizes]}


def content(array):
    return base64.b64encode(array.tobytes()).decode()


TX = {"dtype": "DT_FLOAT", "tensor_shape": shape(2, 12), "tensor_content": content(XS)}
TV = {"dtype": "DT_FLOAT", "tensor_shape": shape(2, 12), "float_val": [0.5]}
SPEC = {"name": "flat"}
KX = {"name": "x", "datatype": "FP32", "shape": [2, 12]}


def predict(x=TX, spec=SPEC, **more):
    return {"model_spec": spec, "inputs": {"x": x} if x else {}, **more}


def raw(data=XS, **more):
    return {"model_name": "flat", "inputs": [KX], "raw_input_contents": [content(data)], **more}


FEATURES = {"features": {"feature": {"x": {"float_list": {"value": X}}}}}
EXAMPLES = {"example_list": {"examples": [FEATURES]}}
TASK = {"model_spec": SPEC, "method_name": "tensorflow/serving/regress"}
GRPC = [
    (PREDICTION, "Predict", predict(), "OK", None),
    (PREDICTION, "Predict", predict(TV), "OK", None),
    (PREDICTION, "Predict", predict({"dtype": "DT_FLOAT", "tensor_shape": shape(0, 12)}), "OK", None),
    (PREDICTION, "Predict", predict(spec={**SPEC, "version": 1}), "OK", None),
    (PREDICTION, "Predict", predict(spec={**SPEC, "version_label": "1"}), "OK", None),
    (PREDICTION, "Predict", predict(spec={**SPEC, "version": 0}), "OK", None),
    (PREDICTION, "Predict", predict(output_filter=["score"]), "OK", None),
    (PREDICTION, "Predict", predict(spec={**SPEC, "version": 9}), "NOT_FOUND", "Servable not found for request: Specific(flat, 9); flat has version 1"),
    (PREDICTION, "Predict", predict(spec={"name": "other"}), "NOT_FOUND", "Servable not found for request: Latest(other); the repository holds flat, small"),
    (PREDICTION, "Predict", predict(spec={**SPEC, "version_label": "x"}), "INVALID_ARGUMENT", "Unrecognized servable version label: x; flat has no label"),
    (PREDICTION, "Predict", predict(spec={**SPEC, "signature_name": "x"}), "INVALID_ARGUMENT", "Serving signature name: 'x' not found…"),
    (PREDICTION, "Predict", {"inputs": {"x": TX}}, "INVALID_ARGUMENT", "Missing ModelSpec"),
    (PREDICTION, "Predict", predict(None), "INVALID_ARGUMENT", "input size does not match signature: 0!=1 len({x}). Sent extra: {}. Missing but required: {x}."),
    (PREDICTION, "Predict", predict({**TX, "dtype": "DT_STRING"}), "INVALID_ARGUMENT", "x: Expects arg[0] to be DT_FLOAT but DT_STRING is provided"),
    (PREDICTION, "Predict", predict({**TX, "tensor_shape": shape(12, 2)}), "INVALID_ARGUMENT", "x: expected shape [n,12], got [12, 2]"),
    (PREDICTION, "Predict", predict({**TX, "tensor_shape": shape(3, 12)}), "INVALID_ARGUMENT", "x: expected 144 bytes of tensor_content, got 96"),
    (PREDICTION, "Predict", predict({**TV, "tensor_shape": shape(2**31 - 1, 12)}), "RESOURCE_EXHAUSTED", "max_rows: …"),
    (PREDICTION, "Predict", predict({**TV, "tensor_shape": {"unknown_rank": True}}), "INVALID_ARGUMENT", "x: expected shape [n,12], got []"),
    (PREDICTION, "Predict", predict(output_filter=["y"]), "INVALID_ARGUMENT", "output tensor alias not found in signature: 'y'…"),
    (PREDICTION, "Classify", {"model_spec": SPEC, "input": EXAMPLES}, "OK", None),
    (PREDICTION, "Regress", {"model_spec": SPEC, "input": EXAMPLES}, "OK", None),
    (PREDICTION, "Regress", {"model_spec": SPEC, "input": {}}, "INVALID_ARGUMENT", "Input is empty."),
    (PREDICTION, "Regress", {"model_spec": SPEC, "input": {"example_list": {}}}, "OK", None),
    (PREDICTION, "Regress", {"input": EXAMPLES}, "INVALID_ARGUMENT", "Missing ModelSpec"),
    (PREDICTION, "Regress", {"model_spec": SPEC, "input": {"example_list": {"examples": [{}]}}}, "INVALID_ARGUMENT", "Feature: x0 (data type: DT_FLOAT) is required but could not be found."),
    (PREDICTION, "MultiInference", {"tasks": [TASK, {**TASK, "method_name": "tensorflow/serving/classify"}], "input": EXAMPLES}, "OK", None),
    (PREDICTION, "MultiInference", {"tasks": [TASK, {**TASK, "model_spec": {**TASK["model_spec"], "signature_name": "serving_default"}}], "input": EXAMPLES}, "INVALID_ARGUMENT", "Duplicate evaluation of signature: 'serving_default'"),
    (PREDICTION, "MultiInference", {"input": EXAMPLES}, "INVALID_ARGUMENT", "Inference tasks must be non-empty"),
    (PREDICTION, "MultiInference", {"tasks": [{**TASK, "method_name": "x"}], "input": EXAMPLES}, "INVALID_ARGUMENT", "Unsupported signature method_name: 'x'"),
    (PREDICTION, "MultiInference", {"tasks": [TASK, {**TASK, "model_spec": {"name": "small"}}], "input": EXAMPLES}, "INVALID_ARGUMENT", "All ModelSpecs in a MultiInferenceRequest…"),
    (PREDICTION, "GetModelMetadata", {"model_spec": SPEC, "metadata_field": ["signature_def"]}, "OK", None),
    (PREDICTION, "GetModelMetadata", {"model_spec": SPEC}, "INVALID_ARGUMENT", "GetModelMetadataRequest must specify at least one metadata_field"),
    (PREDICTION, "GetModelMetadata", {"model_spec": SPEC, "metadata_field": ["x"]}, "INVALID_ARGUMENT", "Metadata field 'x' is not supported"),
    (PREDICTION, "GetModelMetadata", {"metadata_field": ["signature_def"]}, "INVALID_ARGUMENT", "Missing ModelSpec"),
    (MODELS, "GetModelStatus", {"model_spec": SPEC}, "OK", Holds(model_version_status=[{"version": "1", "state": "AVAILABLE", "status": {}}])),
    (MODELS, "GetModelStatus", {}, "INVALID_ARGUMENT", "Missing ModelSpec"),
    (MODELS, "GetModelStatus", {"model_spec": {"name": "flat", "version": 0}}, "OK", None),
    (PREDICTION, "GetModelMetadata", {"model_spec": {"name": "flat", "version": 0}, "metadata_field": ["signature_def"]}, "OK", None),
    (MODELS, "GetModelStatus", {"model_spec": {"name": "other"}}, "NOT_FOUND", "Could not find any versions of model other; the repository holds flat, small"),
    (MODELS, "HandleReloadConfigRequest", {"config": {"model_config_list": {}}}, "PERMISSION_DENIED", "model control: disabled…"),
    (INFERENCE, "ServerLive", {}, "OK", Holds(live=True)),
    (INFERENCE, "ServerReady", {}, "OK", Holds(ready=True)),
    (INFERENCE, "ModelReady", {"name": "flat"}, "OK", Holds(ready=True)),
    (INFERENCE, "ModelReady", {"name": "flat", "version": "9"}, "OK", {}),
    (INFERENCE, "ModelReady", {"name": "other"}, "OK", {}),
    (INFERENCE, "ModelReady", {"name": "flat", "version": "x"}, "INVALID_ARGUMENT", "model_version: expected a whole number, got 'x'"),
    (INFERENCE, "ServerMetadata", {}, "OK", Holds(name="freshet")),
    (INFERENCE, "ModelMetadata", {"name": "flat"}, "OK", Holds(inputs=[{"name": "x", "datatype": "FP32", "shape": ["-1", "12"]}])),
    (INFERENCE, "ModelMetadata", {"name": "other"}, "NOT_FOUND", "model 'other' is not in the repository, which holds flat, small"),
    (INFERENCE, "ModelConfig", {"name": "flat"}, "OK", None),
    (INFERENCE, "ModelConfig", {"name": "other"}, "NOT_FOUND", "model 'other' is not in the repository, which holds flat, small"),
    (INFERENCE, "ModelStatistics", {}, "OK", None),
    (INFERENCE, "ModelStatistics", {"name": "other"}, "NOT_FOUND", "model 'other' is not in the repository, which holds flat, small"),
    (INFERENCE, "RepositoryIndex", {"ready": True}, "OK", Holds(models=[{"name": "flat", "version": "1", "state": "READY"}, {"name": "small", "version": "1", "state": "READY"}])),
    (INFERENCE, "RepositoryModelLoad", {"model_name": "flat"}, "PERMISSION_DENIED", "model control: disabled…"),
    (INFERENCE, "RepositoryModelUnload", {"model_name": "flat"}, "PERMISSION_DENIED", "model control: disabled…"),
    (INFERENCE, "SystemSharedMemoryStatus", {}, "UNIMPLEMENTED", None),
    (INFERENCE, "ModelInfer", raw(), "OK", Holds(model_name="flat", model_version="1", outputs=[{"name": "score", "datatype": "FP32", "shape": ["2", "1"]}])),
    (INFERENCE, "ModelInfer", raw(id="q7", model_version="1"), "OK", Holds(id="q7")),
    (INFERENCE, "ModelInfer", raw(parameters={"timeout": {"int64_param": 60_000_000}, "priority": {"uint64_param": 2}}), "OK", None),
    (INFERENCE, "ModelInfer", {"model_name": "flat", "inputs": [{**KX, "contents": {"fp32_contents": [0.5] * 24}}]}, "OK", None),
    (INFERENCE, "ModelInfer", raw(XS.astype("<f2"), inputs=[{**KX, "datatype": "FP16"}]), "OK", None),
    (INFERENCE, "ModelInfer", {"model_name": "flat", "inputs": [{**KX, "contents": {"fp32_contents": [0.5] * 23}}]}, "INVALID_ARGUMENT", "inputs[x].data: expected 24 values, got 23"),
    (INFERENCE, "ModelInfer", {"model_name": "flat", "inputs": [{**KX, "contents": {"fp64_contents": [0.5] * 24}}]}, "INVALID_ARGUMENT", "inputs[x].contents: expected fp32_contents, got fp64_contents"),
    (INFERENCE, "ModelInfer", raw(XS * np.float32("inf")), "INVALID_ARGUMENT", "input 'x': expected finite numbers (or NaN), got inf in row 0, column 0"),
    (INFERENCE, "ModelInfer", raw(XS[:1]), "INVALID_ARGUMENT", "inputs[x].parameters.binary_data_size: expected 96, got 48"),
    (INFERENCE, "ModelInfer", raw(raw_input_contents=[content(XS)] * 2), "INVALID_ARGUMENT", "raw_input_contents: expected 1, one per input, got 2"),
    (INFERENCE, "ModelInfer", raw(inputs=[{**KX, "datatype": "BYTES"}]), "INVALID_ARGUMENT", "inputs[x].datatype: expected FP32, got 'BYTES'"),
    (INFERENCE, "ModelInfer", raw(inputs=[{**KX, "name": "y"}]), "INVALID_ARGUMENT", "unexpected inference input 'y' for model 'flat': inputs[0]: expected one of x, each once"),
    (INFERENCE, "ModelInfer", raw(outputs=[{"name": "y"}]), "INVALID_ARGUMENT", "outputs[0]: expected one of score, each once, got 'y'"),
    (INFERENCE, "ModelInfer", raw(parameters={"timeout": {"string_param": "1"}}), "INVALID_ARGUMENT", "parameters.timeout…"),
    (INFERENCE, "ModelInfer", raw(model_version="9"), "NOT_FOUND", "version 9 of model 'flat' is not loaded"),
    (INFERENCE, "ModelInfer", raw(model_name="other"), "NOT_FOUND", "model 'other' is not in the repository, which holds flat, small"),
    (HEALTH, "Check", {}, "OK", Holds(status="SERVING")),
    (HEALTH, "Check", {"service": INFERENCE}, "OK", Holds(status="SERVING")),
    (HEALTH, "Check", {"service": "other"}, "NOT_FOUND", "service: is not a service of this server"),
]  # fmt: skip
