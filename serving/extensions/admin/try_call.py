"""Serve POST /admin/models/{name}/try: forward one predict request to the server's own data port.

The console's origin differs from the data port's, which does not allow other origins for it. The body is forwarded
unchanged and refused for the same reasons as any prediction; so is the key, which needs the scope predict if the data
port requires keys. If there are workers, one of them answers.

With `top_items` it asks for the best items, and the reply has the first user's `items` with their columns.

Bounds: MOST_CALLS at once, a body of MAX_BODY_NBYTES, a reply of MAX_REPLY_NBYTES, CALL_S.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

import orjson
from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from freshet_serving.processor.errors import BadInput, NotReady, Overloaded, TooLarge
from freshet_serving.serving.extensions.admin.admin_bodies import Name, read_whole
from freshet_serving.serving.extensions.admin.authorization import SHOWS_FEATURES
from freshet_serving.serving.extensions.admin.item_features import MOST_ITEMS, listed_items
from freshet_serving.serving.front.offload_executor import in_thread
from freshet_serving.serving.lifecycle import Availability
from freshet_serving.serving.request_headers import TOP_ITEMS

if TYPE_CHECKING:
    from freshet_serving.processor.versions.host import ModelHost

MOST_CALLS = 2
MAX_BODY_NBYTES, MAX_REPLY_NBYTES = 1 << 20, 8 << 20
CALL_S = 10.0
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}

Loaded = Annotated[int | None, Query(gt=0, lt=2**63, description="Version that answers.")]
Listed = Annotated[
    int | None, Query(gt=0, le=MOST_ITEMS, description="Number of the best items; the body leaves candidates out.")
]
Labelled = Annotated[str | None, Query(max_length=128, description="Label of the version that answers.")]


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class TryCalls:
    """Calls of one server's data port at an address, if it has one; without `lifecycle` no columns of items are shown.

    Its certificate is not verified: the address is this server's own, which no other process can have.
    """

    def __init__(
        self, address: tuple[str, int] | None, tls: bool = False, lifecycle: Availability[ModelHost] | None = None
    ) -> None:
        self._lifecycle = lifecycle
        self._context = ssl._create_unverified_context() if tls else None
        self._address = address and (ANY.get(address[0], address[0]), address[1])
        self._open = 0

    def add_to(self, app: FastAPI) -> None:
        content = {"application/json": {"schema": {"type": "object", "description": "The same body as for :predict."}}}
        extra = {"requestBody": {"required": True, "content": content}}
        full: dict[int | str, dict[str, Any]] = {
            429: {"description": f"{MOST_CALLS} calls are in progress, or the data port sheds load."}
        }
        app.post("/admin/models/{name}/try", openapi_extra=extra, responses=full)(self.attempt)

    async def attempt(
        self, name: Name, request: Request, version: Loaded = None, label: Labelled = None, top_items: Listed = None
    ) -> Response:
        """Send one predict request to the data port; reply with its answer and the generation that gave it."""
        if version is not None and label is not None:
            raise BadInput("try: expected a version or a label, got both")
        if self._address is None:
            raise NotReady("try: this server has no data port")
        if self._open >= MOST_CALLS:
            raise Overloaded(f"try: expected at most {MOST_CALLS} calls at once")
        self._open += 1
        try:
            body = bytes(await read_whole(request, MAX_BODY_NBYTES))
            which = (
                f"/versions/{version}" if version is not None else f"/labels/{quote(label, safe='')}" if label else ""
            )
            path = f"/v1/models/{quote(name, safe='')}{which}:predict"
            began_s = time.perf_counter()
            key = request.headers.get("authorization")
            more = {} if top_items is None else {TOP_ITEMS.decode(): str(top_items)}
            more |= {} if key is None else {"authorization": key}
            answer = await in_thread(None, partial(_call, self._address, self._context, path, body, more))
            took_ms = round((time.perf_counter() - began_s) * 1e3, 3)
        finally:
            self._open -= 1
        if answer.status != 200:
            return Response(answer.body, answer.status, media_type="application/json")
        document: dict[str, Any] = {
            "generation": answer.headers.get("x-model-generation"),
            "digest": answer.headers.get("x-model-digest"),
            "took_ms": took_ms,
            "reply": orjson.Fragment(answer.body),
        }
        if top_items is not None:
            document["item_generation"] = answer.headers.get("x-item-generation")
            host = None if self._lifecycle is None else self._lifecycle.processor()
            if not request.scope.get(SHOWS_FEATURES, True):
                host = None
            document["items"] = await in_thread(
                None, partial(listed_items, host, name, document["generation"], answer.body)
            )
        return Response(orjson.dumps(document), media_type="application/json", headers={"cache-control": "no-store"})


def _call(
    address: tuple[str, int], context: ssl.SSLContext | None, path: str, body: bytes, more: Mapping[str, str]
) -> _Answer:
    """Send one request on a new connection, over plain HTTP without a context; raises NotReady, TooLarge."""
    connection = (
        http.client.HTTPConnection(*address, timeout=CALL_S)
        if context is None
        else http.client.HTTPSConnection(*address, timeout=CALL_S, context=context)
    )
    try:
        headers = {"content-type": "application/json", "x-model-digest": "1", "connection": "close", **more}
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        data = reply.read(MAX_REPLY_NBYTES + 1)
        reply_headers = {name.lower(): value for name, value in reply.getheaders()}
    except (OSError, http.client.HTTPException):
        raise NotReady("try: the data port does not answer") from None
    finally:
        connection.close()
    if len(data) > MAX_REPLY_NBYTES:
        raise TooLarge(f"try: expected a reply of at most {MAX_REPLY_NBYTES} bytes; send fewer rows")
    return _Answer(reply.status, reply_headers, data)
