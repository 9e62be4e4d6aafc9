"""Describe the data port in OpenAPI: every route of serving.http.paths, predict routes from serving.http.dialects.

The admin port's document comes from FastAPI, at /admin/openapi.json. Inputs differ between models, so the schemas are
those of the protocols; the inputs that a model expects are in its metadata.
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
    "x-request-timeout-ms": ("number", "Past it the request is dropped and answered 504."),
    "x-caller-id": ("string", "Requests of one caller go to one session, under the policy mod."),
    "x-sticky-key": ("string", "Requests of one key are answered by one version of a split."),
    "x-model-digest": ("string", "Given with any value, the reply says the digest of what answered."),
    "x-request-id": ("string", "Comes back with the reply; stands in logs, traces and recordings."),
    "traceparent": ("string", "W3C trace context."),
}
ANSWERING = {
    "x-model-version": ("integer", "The version that answered."),
    "x-model-generation": ("string", "Version and step that answered, such as 3.17."),
    "x-model-digest": ("string", "Digest of the rows and weights that answered, where the request asked for it."),
    "x-request-id": ("string", "The request's own."),
    "x-ignored-inputs": ("string", "Inputs that were sent in columns and that the model does not have."),
}
KEYS = {"key": {"type": "http", "scheme": "bearer", "description": "Of freshet key create, where keys are asked for."}}
KEYED = {
    "401": "Keys are asked for, and this one is missing, wrong or too old.",
    "403": "Keys are asked for, and this one has not the scope {scope}.",
}
CONTROL = {
    "401": "The admin token is missing or wrong.",
    "403": "Clients of this port may not change what is served.",
}
REFUSALS = {
    "400": "The request is wrong; the message names the field, what was wanted and what came.",
    "404": "No such model, version or label.",
    "405": "Another verb is wanted; Allow says which.",
    "413": "The body is too large.",
    "429": "Shed; Retry-After says when to come back.",
    "503": "Loading or draining.",
    "504": "Its deadline passed.",
}


class RouteOperation(NamedTuple):
    """The operation of a route, for OpenAPI.

    Attributes:
        action: The route's action, as in serving.http.paths.Route.
        summary: Its summary.
        reply: Reply schemas by media type.
        body: Request schemas by media type; None without a body.
    """

    action: str
    summary: str
    reply: dict[str, Schema]
    body: dict[str, Schema] | None = None


def _operations() -> dict[str, RouteOperation]:
    """Return the operation of each path."""
    health = json_of(object_of("ready", live={"type": "boolean"}, ready={"type": "boolean"}))
    empty = json_of(ANY_OBJECT)
    found = {
        "/healthz": RouteOperation("up", "Whether the server is up, and ready", health),
        "/metrics": RouteOperation("metrics", "Prometheus metrics", {"text/plain": TEXT}),
        "/": RouteOperation("root", "What this port is, and where things are", json_of(named("Root"))),
        "/docs": RouteOperation("docs", "The page that reads this document", {"text/html": TEXT}),
        "/openapi.json": RouteOperation("openapi", "This document", empty),
        "/v2": RouteOperation("server", "Server metadata", json_of(named("Server"))),
        "/v2/health/live": RouteOperation("live", "Whether the server is up", health),
        "/v2/health/ready": RouteOperation("ready", "Whether every model is ready", json_of(named("Ready"))),
        "/v2/models/stats": RouteOperation("stats", "Statistics of every model", json_of(named("Statistics"))),
        "/v2/repository/index": RouteOperation(
            "index",
            "Versions of every model",
            json_of(named("Index")),
            json_of(object_of("", ready={"type": "boolean"})),
        ),
        "/v2/systemsharedmemory/status": RouteOperation("shm_status", "Registered regions", json_of(named("Regions"))),
        "/v2/systemsharedmemory/unregister": RouteOperation("shm_unregister", "Forgets every region", empty, empty),
        "/api/predict/{model}": _predicting(DIALECTS["processor"]),
    }
    for word in ("load", "unload"):
        found[f"/v2/repository/models/{{model}}/{word}"] = RouteOperation(
            word, f"Has the model {word}ed, if clients may", empty, empty
        )
    region = "/v2/systemsharedmemory/region/{region}"
    key = object_of("key byte_size", key=TEXT, offset=NUMBER, byte_size=NUMBER)
    found |= {
        f"{region}/status": RouteOperation("shm_status", "One region", json_of(named("Regions"))),
        f"{region}/register": RouteOperation("shm_register", "Registers a region", empty, json_of(key)),
        f"{region}/unregister": RouteOperation("shm_unregister", "Forgets a region", empty, empty),
    }
    for where in WHERE[:2]:
        model = f"/v2/models/{{model}}{where}"
        found |= {
            model: RouteOperation("model", "Inputs and outputs", json_of(named("Model"))),
            f"{model}/ready": RouteOperation("model_ready", "Whether it is ready", json_of(named("Ready"))),
            f"{model}/config": RouteOperation("config", "Triton's configuration of it", empty),
            f"{model}/stats": RouteOperation("stats", "Its statistics", json_of(named("Statistics"))),
        }
        found |= {model + d.suffix: _predicting(d) for d in DIALECTS.values() if not d.servable}
    for where in WHERE:
        model = f"/v1/models/{{model}}{where}"
        found |= {
            model: RouteOperation("status", "Status of its versions", json_of(named("Status"))),
            f"{model}/metadata": RouteOperation("metadata", "Its signature", json_of(named("Metadata"))),
        }
        found |= {model + d.suffix: _predicting(d) for d in DIALECTS.values() if d.servable}
    return found


def _predicting(dialect: Dialect) -> RouteOperation:
    return RouteOperation(dialect.name, dialect.summary, dialect.reply, dialect.body)


OPERATIONS = _operations()


@lru_cache(maxsize=1)
def document(version: str) -> bytes:
    """Return the document as JSON, for this version of the server."""
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
    known = REFUSALS | keyed | (CONTROL if operation.action in ("load", "unload") else {})
    refusals = {
        code: {"description": text, "content": _content(json_of(named("Error")))} for code, text in known.items()
    }
    told: dict[str, Any] = {
        "operationId": f"{operation.action}: {path}",
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {"200": reply, **refusals},
    }
    if scope != OPEN:
        told["security"] = [{}, {"key": []}]
    if operation.body is None:
        return {"get": told}
    return {"post": {**told, "requestBody": {"required": predicts, "content": _content(operation.body)}}}


def _content(schemas: dict[str, Schema]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}
