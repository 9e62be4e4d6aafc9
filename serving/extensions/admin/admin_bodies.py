"""Read bodies of the admin port within bounds, validate them, describe them in OpenAPI, and write JSON replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Path, Request
from fastapi.responses import Response
from pydantic import BaseModel

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.codecs.validation import validated
from freshet_serving.serving.codecs.wire import SizeLimit, dump_json, header_int
from freshet_serving.serving.http.asgi import MAX_LENGTH_HEADER

MAX_JSON_NBYTES = 64 << 10
MAX_LEVELS = 32
"""Levels of nesting of a body: what writes a document, into the log or a message, recurses into it."""

Name = Annotated[str, Path(max_length=128)]
Version = Annotated[int, Path(gt=0, lt=2**63)]


Body = TypeVar("Body", bound=BaseModel)


def json_reply(document: Any) -> Response:
    return Response(dump_json(document), media_type="application/json", headers={"cache-control": "no-store"})


async def read_whole(request: Request, max_nbytes: int) -> bytearray:
    """Read a whole body; raise TooLarge as soon as it is known to exceed the limit.

    Grown chunk by chunk: joining the chunks of a large delta would hold the GIL, and with it the data port, for long.
    """
    declared = header_int(dict(request.headers.raw), b"content-length", MAX_LENGTH_HEADER)
    bound = SizeLimit(max_nbytes)
    bound.check(declared or 0)
    body = bytearray()
    async for chunk in request.stream():
        bound.check(len(body) + len(chunk), got="more")
        body += chunk
    return body


async def read_json(request: Request, model: type[Body]) -> Body:
    """Read a JSON body of at most MAX_JSON_NBYTES; raise BadInput or TooLarge."""
    try:
        document = orjson.loads(await read_whole(request, MAX_JSON_NBYTES))
    except orjson.JSONDecodeError:
        raise BadInput("body: expected a JSON object") from None
    level = [document]
    for _ in range(MAX_LEVELS + 1):
        level = [value for holder in level if type(holder) in (dict, list) for value in _members(holder)]
    if level:
        raise BadInput(f"body: expected at most {MAX_LEVELS} levels of nesting, got more")
    return validated(document, model)


def _members(holder: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder


def documented(model: type[BaseModel], **others: Any) -> dict[str, Any]:
    """Return the OpenAPI entry of a body that the route reads itself; `others` are further entries by media type."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": model.model_json_schema()}, **others},
        }
    }
