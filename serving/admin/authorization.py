"""Authorization, who may talk to the admin port: an ASGI layer in front of everything that the port serves.

In order: where no key is asked for the Host header is a name that only this machine could mean, which stops DNS
rebinding; a browser's request comes from the port's own page (serving.http.origin_checks); the bearer token is a key
with the scope of the route (serving.access), as the admin token is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from freshet_serving.processor.errors import FreshetError
from freshet_serving.serving.access.access_guard import AccessGuard, Forbidden, Permit
from freshet_serving.serving.access.scopes import OPEN, admin_scope
from freshet_serving.serving.http import origin_checks
from freshet_serving.serving.http.asgi import Receive, Scope, Send, error_reply, reply

READS = ("GET", "HEAD")
KEY_NAME = "freshet.key"
"""Where the name of a request's key stands in its scope, for whoever writes down who has done what."""


class Authorization:
    """ASGI middleware. guard: who asks for keys; None where nobody does. host: what the port is bound to."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], guard: AccessGuard | None, host: str
    ) -> None:
        self.app = app
        self._guard = guard
        self._host = host.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            permit = self._admit(scope)
        except FreshetError as error:
            status, body, headers = error_reply(error)
            await reply(send, status, body, headers)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if permit is not None:
                permit.end()

    def _admit(self, scope: Scope) -> Permit | None:
        headers, method = dict(scope["headers"]), scope["method"]
        refusal = "" if self._guard is not None else origin_checks.rebinding_refusal(headers, self._host)
        refusal = refusal or origin_checks.cross_site_refusal(headers, changes=method not in READS)
        if refusal:
            raise Forbidden(refusal)
        if self._guard is None:
            return None
        address = scope["client"][0] if scope.get("client") else ""
        wanted, authorization = admin_scope(method, scope["path"]), headers.get(b"authorization")
        permit = self._guard.acquire(wanted, authorization, address)
        if wanted != OPEN:
            scope[KEY_NAME] = self._guard.name_of(authorization)
        return permit
