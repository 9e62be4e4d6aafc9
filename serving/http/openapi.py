"""OpenAPI of the data port, for people and their tools: every route that serving.http.paths knows.

The admin port's comes from FastAPI, at /admin/openapi.json. Inputs are a model's own, so their schemas are those of the
protocols; what a model wants is in its metadata.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from serving.codecs.wire import dump_json
from serving.http.paths import PREDICTS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
BINARY: Schema = {"type": "string", "format": "binary"}
ANY_OBJECT: Schema = {"type": "object"}
WHERE = ("", "/versions/{version}", "/labels/{label}")
# By which header a request says what it wants, and what a reply says of itself.
ASKING = {
    "x-request-timeout-ms": ("number", "Past it the request is dropped and answered 504."),
    "x-caller-id": ("string", "Requests of one caller go to one session, under the policy mod."),
    "x-sticky-key": ("string", "Requests of one key are answered by one version of a split."),
    "x-request-id": ("string", "Comes back with the reply; stands in logs, traces and recordings."),
    "traceparent": ("string", "W3C trace context."),
}
ANSWERING = {
    "x-model-version": ("integer", "The version that answered."),
    "x-model-generation": ("string", "Version and step that answered, such as 3.17."),
    "x-request-id": ("string", "The request's own."),
}
CONTROL = {
    "401": "The admin token is missing or wrong.",
    "403": "Clients of this port may not change what is served.",
}
REFUSALS = {
    "400": "The request is wrong; the message names the field, what was wanted and what came.",
    "404": "No such model, version or label.",
    "413": "The body is too large.",
    "429": "Shed; Retry-After says when to come back.",
    "503": "Loading or draining.",
    "504": "Its deadline passed.",
}


class Operation(NamedTuple):
    """What a route does. body, reply: media type -> schema; no body for none."""

    action: str
    summary: str
    reply: dict[str, Schema]
    body: dict[str, Schema] | None = None


def _object(required: str, /, **properties: Schema) -> Schema:
    """required: names, separated by spaces."""
    return {"type": "object", "properties": properties, "required": required.split()}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _json(schema: Schema) -> dict[str, Schema]:
    return {"application/json": schema}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TENSOR = _object(
    "name shape datatype",
    name=TEXT,
    shape=_list(NUMBER),
    datatype={"type": "string", "enum": ["INT64", "FP32", "FP16", "BF16", "BYTES"]},
    parameters=ANY_OBJECT,
    data={"type": "array", "items": {}},
)
SCHEMAS: dict[str, Schema] = {
    "Error": _object("error", error=TEXT),
    "Ready": _object("ready", ready={"type": "boolean"}),
    "Tensor": TENSOR,
    "InferRequest": _object(
        "inputs", id=TEXT, parameters=ANY_OBJECT, inputs=_list(_named("Tensor")), outputs=_list(ANY_OBJECT)
    ),
    "InferReply": _object(
        "model_name model_version outputs",
        id=TEXT,
        model_name=TEXT,
        model_version=TEXT,
        outputs=_list(_named("Tensor")),
    ),
    "PredictRequest": {
        "description": "Rows (instances), or one array an input (inputs).",
        "type": "object",
        "properties": {"signature_name": TEXT, "instances": {"type": "array", "items": {}}, "inputs": {}},
    },
    "PredictReply": {
        "type": "object",
        "properties": {"predictions": {"type": "array", "items": {}}, "outputs": {}},
    },
    "ExamplesRequest": _object("examples", signature_name=TEXT, context=ANY_OBJECT, examples=_list(ANY_OBJECT)),
    "ResultsReply": _object("results", results={"type": "array", "items": {}}),
    "Server": _object("name version extensions", name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "Model": _object(
        "name versions platform inputs outputs",
        name=TEXT,
        versions=_list(TEXT),
        platform=TEXT,
        inputs=_list(_named("Tensor")),
        outputs=_list(_named("Tensor")),
    ),
    "Status": _object("model_version_status", model_version_status=_list(ANY_OBJECT)),
    "Metadata": _object("model_spec metadata", model_spec=ANY_OBJECT, metadata=ANY_OBJECT),
    "Statistics": _object("model_stats", model_stats=_list(ANY_OBJECT)),
    "Index": _list(_object("name version state", name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "Regions": _list(_object("name key offset byte_size", name=TEXT, key=TEXT, offset=NUMBER, byte_size=NUMBER)),
}
PROTOBUF = {"application/x-protobuf": BINARY}


def _operations() -> dict[str, Operation]:
    """Path -> what it does."""
    health = _json(_object("ready", live={"type": "boolean"}, ready={"type": "boolean"}))
    empty = _json(ANY_OBJECT)
    found = {
        "/healthz": Operation("live", "Whether the server is up", health),
        "/metrics": Operation("metrics", "Prometheus metrics", {"text/plain": TEXT}),
        "/openapi.json": Operation("openapi", "This document", empty),
        "/v2": Operation("server", "Server metadata", _json(_named("Server"))),
        "/v2/health/live": Operation("live", "Whether the server is up", health),
        "/v2/health/ready": Operation("ready", "Whether every model is ready", _json(_named("Ready"))),
        "/v2/models/stats": Operation("stats", "Statistics of every model", _json(_named("Statistics"))),
        "/v2/repository/index": Operation(
            "index", "Versions of every model", _json(_named("Index")), _json(_object("", ready={"type": "boolean"}))
        ),
        "/v2/systemsharedmemory/status": Operation("shm_status", "Registered regions", _json(_named("Regions"))),
        "/v2/systemsharedmemory/unregister": Operation("shm_unregister", "Forgets every region", empty, empty),
        "/api/predict/{model}": Operation("processor", "Predicts, in DeepRec's messages", PROTOBUF, PROTOBUF),
    }
    for word in ("load", "unload"):
        found[f"/v2/repository/models/{{model}}/{word}"] = Operation(
            word, f"Has the model {word}ed, if clients may", empty, empty
        )
    region = "/v2/systemsharedmemory/region/{region}"
    key = _object("key byte_size", key=TEXT, offset=NUMBER, byte_size=NUMBER)
    found |= {
        f"{region}/status": Operation("shm_status", "One region", _json(_named("Regions"))),
        f"{region}/register": Operation("shm_register", "Registers a region", empty, _json(key)),
        f"{region}/unregister": Operation("shm_unregister", "Forgets a region", empty, empty),
    }
    for where in WHERE[:2]:
        model = f"/v2/models/{{model}}{where}"
        infer = {"application/json": _named("InferRequest"), "application/octet-stream": BINARY}
        inferred = {"application/json": _named("InferReply"), "application/octet-stream": BINARY}
        found |= {
            model: Operation("model", "Inputs and outputs", _json(_named("Model"))),
            f"{model}/ready": Operation("model_ready", "Whether it is ready", _json(_named("Ready"))),
            f"{model}/config": Operation("config", "Triton's configuration of it", empty),
            f"{model}/stats": Operation("stats", "Its statistics", _json(_named("Statistics"))),
            f"{model}/infer": Operation("infer", "Predicts, in KServe v2", inferred, infer),
        }
    for where in WHERE:
        model = f"/v1/models/{{model}}{where}"
        examples, results = _json(_named("ExamplesRequest")), _json(_named("ResultsReply"))
        found |= {
            model: Operation("status", "Status of its versions", _json(_named("Status"))),
            f"{model}/metadata": Operation("metadata", "Its signature", _json(_named("Metadata"))),
            f"{model}:predict": Operation(
                "predict",
                "Predicts, in TensorFlow Serving's REST",
                _json(_named("PredictReply")),
                _json(_named("PredictRequest")),
            ),
            f"{model}:classify": Operation("classify", "Predicts from tf.Example", results, examples),
            f"{model}:regress": Operation("regress", "Predicts from tf.Example", results, examples),
            f"{model}:processor": Operation("processor", "Predicts, in DeepRec's messages", PROTOBUF, PROTOBUF),
        }
    return found


OPERATIONS = _operations()


@lru_cache(maxsize=1)
def document(version: str) -> bytes:
    """The document, as JSON. version: the server's."""
    return dump_json(
        {
            "openapi": "3.1.0",
            "info": {"title": "Freshet data port", "version": version or "0"},
            "paths": {path: _path(path, operation) for path, operation in OPERATIONS.items()},
            "components": {"schemas": SCHEMAS},
        }
    )


def _path(path: str, operation: Operation) -> dict[str, Any]:
    names = [piece.partition("}")[0] for piece in path.split("{")[1:]]
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0} if name == "version" else {"type": "string", "minLength": 1},
        }
        for name in names
    ]
    predicts = operation.action in PREDICTS
    reply: dict[str, Any] = {"description": operation.summary, "content": _content(operation.reply)}
    if predicts:
        parameters += [
            {"name": name, "in": "header", "description": text, "schema": {"type": kind}}
            for name, (kind, text) in ASKING.items()
        ]
        reply["headers"] = {
            name: {"description": text, "schema": {"type": kind}} for name, (kind, text) in ANSWERING.items()
        }
    known = REFUSALS | CONTROL if operation.action in ("load", "unload") else REFUSALS
    refusals = {
        code: {"description": text, "content": _content(_json(_named("Error")))} for code, text in known.items()
    }
    told: dict[str, Any] = {
        "operationId": f"{operation.action}: {path}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": reply, **refusals},
    }
    if operation.body is None:
        return {"get": told}
    return {"post": {**told, "requestBody": {"required": predicts, "content": _content(operation.body)}}}


def _content(schemas: dict[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}
