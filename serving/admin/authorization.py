"""Authorization, who may talk to the admin port: an ASGI layer in front of everything that the port serves.

In order: without a token the Host header is a name that only this machine could mean, which stops DNS rebinding; a
browser's request comes from the port's own page (serving.http.sites); the bearer token matches, in constant time.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from serving.http import sites
from serving.http.asgi import JSON_TYPE, RawHeaders, Receive, Scope, Send, error_body, reply

# The page carries no data of its own and asks for the token; health is for probes, which have none.
OPEN_PATHS = ("/", "/docs", "/admin/health")
PAGE_FILES = "/console/"
READS = ("GET", "HEAD")


class Authorization:
    """ASGI middleware. token: "" for none; host: what the port is bound to."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str, host: str) -> None:
        self.app = app
        self._token = token.encode()
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                status, message = refusal
                headers: RawHeaders = [
                    JSON_TYPE,
                    *([(b"www-authenticate", b"Bearer")] if status == 401 else []),
                ]
                await reply(send, status, error_body(message), headers)
                return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        refusal = "" if self._token else sites.rebound(headers, self._host)
        refusal = refusal or sites.foreign(headers, changes=scope["method"] not in READS)
        if refusal:
            return 403, refusal
        opened = scope["path"] in OPEN_PATHS or scope["path"].startswith(PAGE_FILES)
        if self._token and not opened:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                return 401, "authorization: a valid bearer token wanted"
        return None
