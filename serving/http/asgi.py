"""Read requests and write replies on the raw ASGI interface."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

import orjson

from freshet_serving.processor.errors import BadInput, FreshetError, Overloaded, TooLarge
from freshet_serving.serving.access.access_guard import Unauthenticated
from freshet_serving.serving.codecs.wire import JSON_TYPE, Headers, SizeLimit, header_int

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
RawHeaders = Sequence[tuple[bytes, bytes]]

MAX_LENGTH_HEADER = 10**18 - 1


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


class MethodNotAllowed(FreshetError):
    http_status = 405
    grpc_code = "UNIMPLEMENTED"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class WrongVerb(MethodNotAllowed):
    """The same below /v1, where TensorFlow Serving answers 400."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


async def read_body(receive: Receive, headers: Headers, bound: SizeLimit) -> bytes:
    """Read the whole body; raise TooLarge as soon as it exceeds the limit, BadInput if its declared length is wrong."""
    declared = header_int(headers, b"content-length", MAX_LENGTH_HEADER)
    bound.check(declared or 0)
    # Memory use is the body's size, however small its pieces are.
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
        bound.check(len(body), got="more")
        if not message.get("more_body", False):
            break
    if declared is not None and declared != len(body):
        raise BadInput(f"body: expected {declared} bytes as declared, got {len(body)}")
    return bytes(body)


async def reply(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


def error_reply(error: FreshetError) -> tuple[int, bytes, RawHeaders]:
    headers = [JSON_TYPE]
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    elif isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    elif isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    elif isinstance(error, TooLarge):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers.append((b"connection", b"close"))
    return error.http_status, error_body(str(error)), headers


def error_body(message: str) -> bytes:
    """Return {"error": message} as JSON; characters that UTF-8 cannot encode are replaced."""
    return orjson.dumps({"error": message.encode(errors="replace").decode()})
