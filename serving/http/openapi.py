"""Describe the data port in OpenAPI: every route of serving.http.paths, predict routes from serving.http.dialects.

Inputs differ between models, so the schemas are those of the protocols; a model's metadata has its inputs. The admin
port's document comes from FastAPI, at /admin/openapi.json.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from freshet_serving.serving.access.scopes import HTTP_SCOPES, OPEN
from freshet_serving.serving.codecs.wire import dump_json
from freshet_serving.serving.http.dialects import DIALECTS, Dialect
from freshet_serving.serving.http.schemas import ANY_OBJECT, NUMBER, SCHEMAS, TEXT, Schema, json_of, named, object_of

WHERE = ("", "/versions/{version}", "/labels/{label}")
# Request headers that set options, and reply headers that describe the reply.
ASKING = {
    "x-request-timeout-ms": ("number", "Deadline in milliseconds; after it the server replies 504."),
    "x-sticky-key": ("string", "In a traffic split, one version answers all requests with the same key."),
    "x-top-items": ("integer", "Reply with so many best items, of the candidates or, without any, of all."),
    "x-model-digest": ("string", "With any value: the reply has the digest of the rows and weights that answered."),
    "x-request-id": ("string", "Request id: repeated in the reply, logs, traces and recordings."),
    "traceparent": ("string", "W3C trace context."),
}
ANSWERING = {
    "x-model-version": ("integer", "The version that answered."),
    "x-model-generation": ("string", "Version and step that answered, such as 3.17."),
    "x-model-digest": ("string", "Digest of the rows and weights that answered, if the request has x-model-digest."),
    "x-item-generation": ("string", "For the best items: the generation of the items' vectors, where they lag."),
    "x-state-generation": ("string", "The generation of the user's part, where it was kept and is older or rounded."),
    "x-request-id": ("string", "The request's x-request-id."),
    "x-unfilled": ("integer", "With x-top-items: how many fewer items there are for each user than asked for."),
    "x-ignored-inputs": ("string", "Columns of the request that the model does not have."),
}
KEYS = {"key": {"type": "http", "scheme": "bearer", "description": "A key of `freshet key create`, if required."}}
KEYED = {
    "401": "The server requires a key, and it is missing, unknown or expired.",
    "403": "The server requires a key, and this one does not have the scope {scope}.",
}
CONTROL = {"401": "The admin token is missing or wrong.", "403": "Clients of this port may not load or unload models."}
REFUSALS = {
    "400": "The request is invalid; the message names the field, the expected and the actual value.",
    "404": "The model, version or label does not exist.",
    "405": "The path does not have this method; the Allow header lists the methods it has.",
    "413": "The body is too large.",
    "429": "The server sheds load or a rate limit is exceeded; Retry-After says when to try again.",
    "503": "The server is loading models or draining.",
    "504": "The request's deadline passed.",
}


class RouteOperation(NamedTuple):
    """The operation of a route; `reply` and `body` are schemas by media type, and `body` is None for a GET."""

    action: str
    summary: str
    reply: dict[str, Schema]
    body: dict[str, Schema] | None = None


def _operations() -> dict[str, RouteOperation]:
    alive = json_of(object_of("live", live={"type": "boolean"}))
    health = json_of(object_of("ready", ready={"type": "boolean"}))
    empty = json_of(ANY_OBJECT)
    operations = {
        "/healthz": RouteOperation("up", "Tell whether the server is up and ready", health),
        "/metrics": RouteOperation("metrics", "Prometheus metrics", {"text/plain": TEXT}),
        "/": RouteOperation("root", "Describe this port and list its routes", json_of(named("Root"))),
        "/docs": RouteOperation("docs", "Page that shows this document", {"text/html": TEXT}),
        "/openapi.json": RouteOperation("openapi", "This document", empty),
        "/v2": RouteOperation("server", "Server metadata", json_of(named("Server"))),
        "/v2/health/live": RouteOperation("live", "Tell whether the server is up", alive),
        "/v2/health/ready": RouteOperation("ready", "Tell whether every model is ready", json_of(named("Ready"))),
        "/v2/models/stats": RouteOperation("stats", "Statistics of every model", json_of(named("Statistics"))),
        "/v2/repository/index": RouteOperation(
            "index",
            "Versions of every model",
            json_of(named("Index")),
            json_of(object_of("", ready={"type": "boolean"})),
        ),
        "/v2/systemsharedmemory/status": RouteOperation("shm_status", "Registered regions", json_of(named("Regions"))),
        "/v2/systemsharedmemory/unregister": RouteOperation("shm_unregister", "Unregister every region", empty, empty),
        "/api/predict/{model}": _predicting(DIALECTS["processor"]),
        "/v1/rerank": _predicting(DIALECTS["rerank"]),
        "/v2/rerank": _predicting(DIALECTS["rerank"]),
    }
    for word in ("load", "unload"):
        operations[f"/v2/repository/models/{{model}}/{word}"] = RouteOperation(
            word, f"Model control: {word} the model, if the server allows it", empty, empty
        )
    region = "/v2/systemsharedmemory/region/{region}"
    key = object_of("key byte_size", key=TEXT, offset=NUMBER, byte_size=NUMBER)
    operations |= {
        f"{region}/status": RouteOperation("shm_status", "One region", json_of(named("Regions"))),
        f"{region}/register": RouteOperation("shm_register", "Register a region", empty, json_of(key)),
        f"{region}/unregister": RouteOperation("shm_unregister", "Unregister a region", empty, empty),
    }
    for where in WHERE[:2]:
        model = f"/v2/models/{{model}}{where}"
        operations |= {
            model: RouteOperation("model", "Inputs and outputs of the model", json_of(named("Model"))),
            f"{model}/ready": RouteOperation("model_ready", "Tell whether the model is ready", json_of(named("Ready"))),
            f"{model}/config": RouteOperation("config", "The model's configuration in Triton's format", empty),
            f"{model}/stats": RouteOperation("stats", "Statistics of the model", json_of(named("Statistics"))),
        }
        operations |= {model + d.suffix: _predicting(d) for d in DIALECTS.values() if not d.servable}
    for where in WHERE:
        model = f"/v1/models/{{model}}{where}"
        operations |= {
            model: RouteOperation("status", "Status of the model's versions", json_of(named("Status"))),
            f"{model}/metadata": RouteOperation("metadata", "The model's signature", json_of(named("Metadata"))),
        }
        operations |= {model + d.suffix: _predicting(d) for d in DIALECTS.values() if d.servable}
    return operations


def _predicting(dialect: Dialect) -> RouteOperation:
    return RouteOperation(dialect.name, dialect.summary, dialect.reply, dialect.body)


OPERATIONS = _operations()


@lru_cache(maxsize=1)
def document(version: str) -> bytes:
    return dump_json(
        {
            "openapi": "3.1.0",
            "info": {"title": "Freshet data port", "version": version or "0"},
            "paths": {path: _path(path, operation) for path, operation in OPERATIONS.items()},
            "components": {"schemas": SCHEMAS, "securitySchemes": KEYS},
        }
    )


def _path(path: str, operation: RouteOperation) -> dict[str, Any]:
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
    predicts = operation.action in DIALECTS
    reply: dict[str, Any] = {"description": operation.summary, "content": _content(operation.reply)}
    if predicts:
        parameters += [
            {"name": name, "in": "header", "description": text, "schema": {"type": kind}}
            for name, (kind, text) in ASKING.items()
        ]
        reply["headers"] = {
            name: {"description": text, "schema": {"type": kind}} for name, (kind, text) in ANSWERING.items()
        }
    scope = HTTP_SCOPES[operation.action]
    keyed = {} if scope == OPEN else {code: text.format(scope=scope) for code, text in KEYED.items()}
    answers = REFUSALS | keyed | (CONTROL if operation.action in ("load", "unload") else {})
    refusals = {
        code: {"description": text, "content": _content(json_of(named("Error")))} for code, text in answers.items()
    }
    described: dict[str, Any] = {
        "operationId": f"{operation.action}: {path}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": reply, **refusals},
    }
    if scope != OPEN:
        described["security"] = [{}, {"key": []}]
    if operation.body is None:
        return {"get": described}
    return {"post": {**described, "requestBody": {"required": predicts, "content": _content(operation.body)}}}


def _content(schemas: dict[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}
