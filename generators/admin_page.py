"""Generate the tables of docs/reference/admin.md from the OpenAPI document of the admin port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from freshet_serving.serving.extensions.admin.api import create_admin
from freshet_serving.serving.extensions.explaining.explain_route import ExplainRoute
from freshet_serving.serving.lifecycle import Lifecycle
from freshet_serving.serving.telemetry.metrics import Metrics

HEAD = "| field | type | description |\n|---|---|---|\n"


def page() -> str:
    document = _document()
    parts = [_refusals(document)]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## {method.upper()} {path}\n\n{' '.join(operation['description'].split())}\n")
            parts.extend(_bodies(operation))
    return "\n".join(parts)


def _document() -> dict[str, Any]:
    """Return the port's reply to a request for its OpenAPI document; opens no model."""
    lifecycle: Lifecycle[Any] = Lifecycle()
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/admin/openapi.json",
        "raw_path": b"/admin/openapi.json",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
    }
    admin = create_admin(lifecycle, Metrics(lifecycle), routes={"explain": ExplainRoute(lifecycle)})
    asyncio.run(admin(scope, receive, send))
    document: dict[str, Any] = json.loads(b"".join(sent))
    return document


def _refusals(document: Mapping[str, Any]) -> str:
    first = next(iter(next(iter(document["paths"].values())).values()))
    rows = (
        f"| {code} | {response['description']} |\n" for code, response in first["responses"].items() if code[0] in "45"
    )
    return "| status | when |\n|---|---|\n" + "".join(rows)


def _bodies(operation: Mapping[str, Any]) -> Iterator[str]:
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        fields = body["schema"].get("properties")
        if fields is None:
            yield f"Alternatively the file itself as the body, `{kind}`.\n"
            continue
        needed = body["schema"].get("required", ())
        yield HEAD + "".join(_row(name, schema, name in needed) for name, schema in fields.items())


def _row(name: str, schema: Mapping[str, Any], needed: bool) -> str:
    notes = [schema.get("description", "")]
    if needed:
        notes.append("Required.")
    return f"| `{name}` | {_type(schema)} | {' '.join(filter(None, notes))} |\n"


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(inner) for inner in schema["anyOf"] if inner.get("type") != "null"))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        of = schema.get("additionalProperties")
        return f"object of {_type(of)}" if isinstance(of, dict) else "object"
    return str(schema["type"])
