"""Authorization, who may talk to the admin port: an ASGI layer in front of everything that the port serves.

In order: the Host header names this server (without a token: a name that only this machine could mean, which
stops DNS rebinding); a browser's request comes from the port's own page; the bearer token matches, in
constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from serving.http.asgi import JSON_TYPE, RawHeaders, Receive, Scope, Send, error_body, reply

# The page carries no data of its own and asks for the token; health is for probes, which have none.
OPEN_PATHS = ("/", "/docs", "/admin/health")


def is_loopback(host: str) -> bool:
    """Whether `host` is localhost or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Authorization:
    """ASGI middleware. token: "" for none; host: what the port is bound to."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str, host: str) -> None:
        self._app = app
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
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not self._token:
            name = _hostname(host)
            if name is None or not (is_loopback(name) or name == self._host):
                return 403, "host: this server's own name wanted"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() not in (
            f"http://{host}",
            f"https://{host}",
        ):
            return 403, "origin: requests from other sites are refused"
        if self._token and scope["path"] not in OPEN_PATHS:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                return 401, "authorization: a valid bearer token wanted"
        return None


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
